"""The terms of a role's score: those that a reward host computes, and those of reward models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.spec.rewards import RewardSpec, RewardTokenizer

# The digest of a manifest's graph contains the names of these classes' attributes: a renamed one
# would make every stored graph outdated.


@dataclass(frozen=True)
class ModelTerm:
    """The contribution of a reward model to a score."""

    name: str
    """Name of the reward."""
    role: str
    """Role of the model."""
    weight: float
    """Factor in the sum."""
    reads_text: bool
    """True: it tokenizes prompts and responses itself. False: it reads the policy's tokens."""


@dataclass(frozen=True)
class RewardTerms:
    """All terms of one role's score."""

    hosted: tuple[str, ...] = ()
    """Names of the terms that verifiers and services compute."""
    models: tuple[ModelTerm, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the terms that get their own column: all, if there are several."""
        names = (*self.hosted, *(term.name for term in self.models))
        # A single term is the role's score itself.
        return names if len(names) > 1 else ()


def reward_terms(rewards: Sequence[RewardSpec]) -> Mapping[str, RewardTerms]:
    """The terms of every role that the manifest has rewards for."""
    roles: dict[str, RewardTerms] = {}
    for reward in rewards:
        terms = roles.get(reward.role, RewardTerms())
        # A reward host computes verifiers and services; a model is a role of its own.
        if reward.model is None:
            roles[reward.role] = RewardTerms((*terms.hosted, reward.name), terms.models)
            continue
        reads_text = reward.model.tokenizer is RewardTokenizer.OWN
        term = ModelTerm(reward.name, reward.model_role, reward.weight, reads_text)
        roles[reward.role] = RewardTerms(terms.hosted, (*terms.models, term))
    return roles
