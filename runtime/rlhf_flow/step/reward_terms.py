"""What the score of a role is the sum of: terms that a host computes, and those of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.spec.rewards import RewardSpec, RewardTokenizer


@dataclass(frozen=True)
class ModelTerm:
    """A reward model's part of a score."""

    name: str
    """The reward's."""
    role: str
    """The model's."""
    weight: float
    """Factor in the sum."""
    reads_text: bool
    """Whether it tokenizes prompts and responses anew; else it reads the policy's tokens."""


@dataclass(frozen=True)
class RewardTerms:
    """All terms of one role's score."""

    hosted: tuple[str, ...] = ()
    """Names of those that verifiers and services compute."""
    models: tuple[ModelTerm, ...] = ()
    """Those of reward models."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the terms with a column of their own beside the sum: where there are several."""
        names = (*self.hosted, *(term.name for term in self.models))
        return names if len(names) > 1 else ()


def reward_terms(rewards: Sequence[RewardSpec]) -> Mapping[str, RewardTerms]:
    """The terms of each role that rewards are given for.

    Args:
        rewards: of the manifest.
    """
    found: dict[str, RewardTerms] = {}
    for each in rewards:
        terms = found.get(each.role, RewardTerms())
        if each.model is None:
            found[each.role] = RewardTerms((*terms.hosted, each.name), terms.models)
            continue
        reads_text = each.model.tokenizer is RewardTokenizer.OWN
        term = ModelTerm(each.name, each.model_role, each.weight, reads_text)
        found[each.role] = RewardTerms(terms.hosted, (*terms.models, term))
    return found
