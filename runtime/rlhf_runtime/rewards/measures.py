"""Which metric of held-out prompts a verifier says that it measures. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

Verifier = TypeVar("Verifier", bound=Callable[..., Any])

_MARK = "__rlhf_metric__"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_TAKEN = re.compile(r"reward_mean|length_mean|pass_at_.*")
"""Metrics that every evaluation has."""


def measures(metric: str) -> Callable[[Verifier], Verifier]:
    """Mark a verifier: its mean over held-out prompts is the metric `evaluation/<metric>`.

    Args:
        metric: an identifier of at most 63 characters, and no metric that evaluations have anyway.

    Raises:
        ValueError: another name.
    """
    if not _NAME.fullmatch(metric) or _TAKEN.fullmatch(metric):
        raise ValueError(
            f"not a name for a metric: got {metric!r}, allowed at most 63 letters, digits and "
            "underscores, not a digit first, but for reward_mean, length_mean and pass_at_<k>; "
            "choose such a name"
        )

    def mark(verifier: Verifier) -> Verifier:
        setattr(verifier, _MARK, metric)
        return verifier

    return mark


def metric_of(verifier: Callable[..., Any]) -> str | None:
    """The metric that a verifier measures; None: it declares none."""
    metric: str | None = getattr(verifier, _MARK, None)
    return metric
