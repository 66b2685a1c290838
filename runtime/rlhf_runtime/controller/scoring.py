"""Merges the scoring reports of a call's slices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from rlhf_runtime.calls.reports import CallReport, ScoringReport
from rlhf_runtime.rewards.errors import NothingScored
from rlhf_runtime.rewards.scores import MAX_NAMED, Failure


def require_scores(reports: Sequence[CallReport], step: int) -> None:
    """Check that every call that scores has a valid score in every round.

    Args:
        reports: of all slices of the calls, in the order of their rows.
        step: for the message.

    Raises:
        NothingScored: a call has responses, but no valid score.
    """
    for parts in _calls(reports):
        count = sum(part.num_samples for part in parts)
        if count and not any(part.num_valid for part in parts):
            raise NothingScored(
                f"no sample could be scored: got errors for all {count} responses of step {step}; "
                "correct the verifier, or see to its service. "
                + " ".join(
                    f"{name}: {failures[0]}"
                    for name, failures in _failures(parts).items()
                    if not failures[0].only_together
                )
            )


def unscored_samples(reports: Sequence[CallReport]) -> tuple[tuple[str, Failure], ...]:
    """Return the first failures with the reward's name, by call and round."""
    return tuple(
        (name, failure)
        for parts in _calls(reports)
        for name, failures in _failures(parts).items()
        for failure in failures[:MAX_NAMED]
    )


def _calls(reports: Sequence[CallReport]) -> list[list[ScoringReport]]:
    """Return the reports of each call and round."""
    by_call: dict[tuple[str, int], list[ScoringReport]] = {}
    for report in reports:
        if report.scoring is not None:
            by_call.setdefault((report.call, report.scoring.round), []).append(report.scoring)
    return list(by_call.values())


def _failures(parts: Sequence[ScoringReport]) -> dict[str, tuple[Failure, ...]]:
    """Return the failures by reward, in order; those with a score after all come last."""
    failures_by_reward: dict[str, tuple[Failure, ...]] = {}
    for part in parts:
        for name, failures in part.failures.items():
            failures_by_reward[name] = (*failures_by_reward.get(name, ()), *failures)
    return {
        name: tuple(sorted(failures, key=attrgetter("only_together")))
        for name, failures in failures_by_reward.items()
    }
