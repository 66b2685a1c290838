"""Algorithm: the base class of PPO, GRPO and users' own algorithms; and the roles of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from rlhf_api.spec.rewards import MODEL_ROLE
from rlhf_flow.errors import FlowError
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.reward_terms import RewardTerms
from rlhf_flow.step.roles import Role, Roles, ScalarModel


class Algorithm(ABC):
    """Roles and a step over them.

    The step is traced to a graph before a job starts and then runs once per training step.
    Conditions in it may depend on the algorithm's own settings, never on values of a batch.
    A user's class gets the manifest's `custom.parameters` as keyword arguments of its constructor.
    """

    @abstractmethod
    def roles(self) -> Roles:
        """The kind of every role, such as {"actor": LanguageModel}."""

    @abstractmethod
    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """One training step on a batch of prompts, with answers or as pairs if the data have
        them."""


def checked_roles(name: str, roles: object) -> Roles:
    """Check the result of an algorithm's `roles()`.

    Raises:
        FlowError: it is no mapping from names to kinds of roles.
    """
    if not isinstance(roles, Mapping):
        raise _invalid_roles(name, repr(roles))
    for role, kind in roles.items():
        if not _is_role((role, kind)):
            raise _invalid_roles(name, f"{{{role!r}: {kind!r}}}")
    return dict(roles)


def reward_models(name: str, roles: Roles, rewards: Mapping[str, RewardTerms]) -> Roles:
    """The roles of the reward models that contribute to an algorithm's scores.

    Raises:
        FlowError: a reward model has the name of a role of the algorithm.
    """
    models = [
        term.role for role, terms in rewards.items() if role in roles for term in terms.models
    ]
    if clash := sorted(set(models) & set(roles)):
        reward = clash[0].removesuffix(MODEL_ROLE)
        raise FlowError(
            f"a reward model and a role of {name}.roles() have one name: got {clash[0]}, allowed "
            f"another one; rename the reward {reward} in the manifest, or the role"
        )
    return dict.fromkeys(models, ScalarModel)


def _invalid_roles(name: str, got: str) -> FlowError:
    return FlowError(
        f"{name}.roles() returns something other than roles: got {got}, allowed a mapping from "
        "names to LanguageModel, ScalarModel or RewardSource; return {'actor': LanguageModel, ...}"
    )


def _is_role(entry: tuple[object, object]) -> bool:
    name, kind = entry
    return isinstance(name, str) and isinstance(kind, type) and issubclass(kind, Role)
