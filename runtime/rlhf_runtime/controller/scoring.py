"""Merges the scoring reports of a call's slices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import SCORING
from rlhf_runtime.calls.reports import CallReport, ScoringReport
from rlhf_runtime.rewards.errors import NothingScored
from rlhf_runtime.rewards.scores import MAX_NAMED, Failure

# Endings of a role's metrics.
EMPTY_UPDATES = "/empty_updates"
GRADIENT_NORM = "/gradient_norm"


def require_scores(reports: Sequence[CallReport], graph: GraphName, step: int) -> None:
    """Check that no reward failed on every sample of a call, in any round, so that none counts.

    Args:
        reports: of all slices of the calls, in the order of their rows.
        graph: the pass, for the message.
        step: for the message.

    Raises:
        NothingScored: a reward is to blame for a call without a score that counts.
    """
    for parts in _by_round(reports):
        count = sum(part.num_samples for part in parts)
        if not count or any(part.num_counted for part in parts):
            continue
        # A reward that fails on some samples only has no fault of its own that nothing is left.
        names = dict.fromkeys(name for part in parts for name in part.num_failed)
        failing = [
            name for name in names if sum(part.num_failed.get(name, 0) for part in parts) == count
        ]
        if failing:
            raise NothingScored(
                f"no sample could be scored: got errors of {', '.join(failing)} for all {count} "
                f"responses of {describe_pass(graph, step)}; correct the verifier, or see to its "
                "service. "
                + " ".join(
                    f"{name}: {failures[0]}"
                    for name, failures in _failures(parts).items()
                    if not failures[0].only_together
                ),
                step,
                graph is GraphName.EVALUATION,
            )


def is_unscored(reports: Sequence[CallReport]) -> bool:
    """True if there are samples, but no score that counts: nothing to train on or to measure."""
    parts = [report.scoring for report in reports if report.scoring is not None]
    # One verifier's is enough: others may only be measured.
    if any(part.num_counted for part in parts):
        return False
    # Reward models score everything, but all may be left out. Their updates say so; those of
    # verifiers do not, as a loss may leave out what has scores, too.
    if any(span.call in SCORING for report in reports for span in report.spans):
        return _leaves_out_updates(reports)
    return any(part.num_samples for part in parts)


def _leaves_out_updates(reports: Sequence[CallReport]) -> bool:
    """True if there are updates, and all of them were left out because no response counted."""
    is_left_out = any(
        name.endswith(EMPTY_UPDATES) for report in reports for name in report.statistics.sums
    )
    return is_left_out and not any(
        name.endswith(GRADIENT_NORM) for report in reports for name in report.statistics.means
    )


def describe_pass(graph: GraphName, step: int) -> str:
    """Name a pass in messages."""
    match graph:
        case GraphName.EVALUATION:
            return f"the evaluation after step {step}"
        case GraphName.WARM_START:
            return f"step {step} of the warm start"
        case GraphName.STEP:
            return f"step {step}"


def host_notices(reports: Sequence[CallReport]) -> tuple[str, ...]:
    """Return the texts of reward hosts and environment hosts for users, each once."""
    parts = [part for report in reports for part in (report.scoring, report.episodes) if part]
    return tuple(dict.fromkeys(text for part in parts for text in part.notices))


def unscored_samples(reports: Sequence[CallReport]) -> tuple[tuple[str, Failure], ...]:
    """Return the first failures with the reward's name, by call and round."""
    return tuple(
        (name, failure)
        for parts in _by_round(reports)
        for name, failures in _failures(parts).items()
        for failure in failures[:MAX_NAMED]
    )


def _by_round(reports: Sequence[CallReport]) -> list[list[ScoringReport]]:
    """Return the reports of each call and round."""
    groups: dict[tuple[str, int], list[ScoringReport]] = {}
    for report in reports:
        if report.scoring is not None:
            groups.setdefault((report.call, report.scoring.round), []).append(report.scoring)
    return list(groups.values())


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
