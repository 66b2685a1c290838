"""What hosts said of the parts of a call that scores, put together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.rewards.errors import NothingScored
from rlhf_runtime.workers.orders import CallReport, Scored


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
                + " ".join(f"{name}: {text}" for name, text in _errors(parts).items())
            )


def notices_of(reports: Sequence[CallReport]) -> tuple[str, ...]:
    """The first error of every reward, call by call and round by round."""
    return tuple(
        f"reward {name}: {text}"
        for parts in _calls(reports)
        for name, text in _errors(parts).items()
    )


def _calls(reports: Sequence[CallReport]) -> list[list[Scored]]:
    """The parts of each call in each of its rounds."""
    found: dict[tuple[str, int], list[Scored]] = {}
    for report in reports:
        if report.scored is not None:
            found.setdefault((report.call, report.scored.round), []).append(report.scored)
    return list(found.values())


def _errors(parts: Sequence[Scored]) -> dict[str, str]:
    """The foremost of every reward."""
    errors: dict[str, str] = {}
    for part in parts:
        errors = {**part.errors, **errors}
    return errors
