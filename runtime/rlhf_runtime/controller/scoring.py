"""What hosts said of the parts of a call that scores, put together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from rlhf_runtime.calls.reports import CallReport, ScoringReport
from rlhf_runtime.rewards.errors import NothingScored
from rlhf_runtime.rewards.scores import MAX_NAMED, Failure


def require_scores(reports: Sequence[CallReport], step: int) -> None:
    """Check that of every call that scores, in every round, some response counts.

    Args:
        reports: of all parts of the calls, in the order of their rows.
        step: theirs, for the message.

    Raises:
        NothingScored: of one none does, although there are responses.
    """
    for parts in _calls(reports):
        count = sum(part.num_samples for part in parts)
        if count and not any(part.num_valid for part in parts):
            raise NothingScored(
                f"no sample could be scored: got errors for all {count} responses of step {step}; "
                "correct the verifier, or see to its service. "
                + " ".join(
                    f"{name}: {each[0]}"
                    for name, each in _failures(parts).items()
                    if not each[0].only_together
                )
            )


def unscored_samples(reports: Sequence[CallReport]) -> tuple[tuple[str, Failure], ...]:
    """The foremost failures with the name of the reward, call by call and round by round."""
    return tuple(
        (name, failure)
        for parts in _calls(reports)
        for name, failures in _failures(parts).items()
        for failure in failures[:MAX_NAMED]
    )


def _calls(reports: Sequence[CallReport]) -> list[list[ScoringReport]]:
    """The parts of each call in each of its rounds."""
    by_call: dict[tuple[str, int], list[ScoringReport]] = {}
    for report in reports:
        if report.scoring is not None:
            by_call.setdefault((report.call, report.scoring.round), []).append(report.scoring)
    return list(by_call.values())


def _failures(parts: Sequence[ScoringReport]) -> dict[str, tuple[Failure, ...]]:
    """Those of every reward, the foremost first; last what has scores after all."""
    failures_by_reward: dict[str, tuple[Failure, ...]] = {}
    for part in parts:
        for name, failures in part.failures.items():
            failures_by_reward[name] = (*failures_by_reward.get(name, ()), *failures)
    return {
        name: tuple(sorted(each, key=attrgetter("only_together")))
        for name, each in failures_by_reward.items()
    }
