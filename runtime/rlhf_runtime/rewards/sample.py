"""Interface of verifiers: their input and the metric they declare. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to one prompt.

    prompt: the prompt as the model read it, chat template included.
    response: the model's response, without the end token.
    record: the row of the data that the prompt came from, with all its fields.
    finished: True if the response ended by itself, False if it was truncated at maxResponseTokens.
    source: name of the row's source; None if the data has a single one.
    turns: of a conversation, the text of each turn of the model; `response` is the last one. Empty
        without rollout.environment.
    environment_reward: what the environment of a conversation returned; None without one.
    """

    prompt: str
    response: str
    record: Mapping[str, Any]
    finished: bool
    source: str | None = None
    turns: tuple[str, ...] = ()
    environment_reward: float | Mapping[str, float] | None = None

    @property
    def has_conversation(self) -> bool:
        """True if it has turns, or a reward of its environment."""
        return bool(self.turns) or self.environment_reward is not None


Verifier = TypeVar("Verifier", bound=Callable[..., Any])

_MARK = "__rlhf_metric__"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
# Matches metrics that every evaluation has.
_RESERVED = re.compile(r"reward_mean|length_mean|pass_at_.*")


def measures(metric: str) -> Callable[[Verifier], Verifier]:
    """Declare that a verifier's mean over evaluation prompts is the metric `evaluation/<metric>`.

    Args:
        metric: an identifier of at most 63 characters that no evaluation has anyway.

    Raises:
        ValueError: metric is not such a name.
    """
    if not _NAME.fullmatch(metric) or _RESERVED.fullmatch(metric):
        raise ValueError(
            f"not a name for a metric: got {metric!r}, allowed at most 63 letters, digits and "
            "underscores, not a digit first, but for reward_mean, length_mean and pass_at_<k>; "
            "choose such a name"
        )

    def mark(verifier: Verifier) -> Verifier:
        setattr(verifier, _MARK, metric)
        return verifier

    return mark


def declared_metric(verifier: Callable[..., Any]) -> str | None:
    """Return the metric that a verifier declares, or None."""
    metric: str | None = getattr(verifier, _MARK, None)
    return metric
