"""Asks each service once before a start, so that a wrong key or address is seen at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.preflight.trial_rows import TrialRow
from rlhf_runtime.rewards.applicable_samples import applies
from rlhf_runtime.rewards.make_scorer import service_scorer
from rlhf_runtime.rewards.scores import Scores
from rlhf_runtime.telemetry.shortened_text import shorten
from rlhf_runtime.telemetry.visible_text import visible_text

# Limit of a request.
SECONDS = 5
DETAIL_CHARACTERS = 500


def probe_services(services: Sequence[RewardSpec], rows: Sequence[TrialRow]) -> list[str]:
    """Let services score one response, all at the same time.

    Args:
        services: rewards by services that can be asked from here.
        rows: of the data; the response is the reference answer of a row.

    Returns:
        A text for each service that gives no score. It may start later than the job, or be busy.
    """
    with ExitStack() as stack:
        requests = []
        for reward in services:
            row = _row_of(reward, rows)
            if row is not None:
                scorer = stack.enter_context(closing(service_scorer(_once(reward))))
                sample = row.sample(row.reference(reward) or "")
                requests.append((scorer, scorer.submit([sample])))
        return [
            text for scorer, request in requests for text in _texts(scorer.title, request.result())
        ]


def _row_of(reward: RewardSpec, rows: Sequence[TrialRow]) -> TrialRow | None:
    """Return the first row to whose responses a reward applies."""
    return next((row for row in rows if applies(reward, row.record, row.source)), None)


def _once(reward: RewardSpec) -> RewardSpec:
    """Return a reward whose service is asked once, for a short time."""
    service = reward.service
    assert service is not None
    return reward.with_settings(
        max_retries=0, timeout_seconds=min(SECONDS, service.timeout_seconds)
    )


def _texts(title: str, scores: Scores) -> Iterator[str]:
    for failure in scores.failures:
        detail = shorten(failure.detail, DETAIL_CHARACTERS)
        yield visible_text(f"{title} gives no score now ({failure.fault.value}): {detail}")
