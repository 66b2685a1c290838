"""Pods that were told to end, and whether anybody is there to end them."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_operator.decide.draft import Draft
from rlhf_operator.decide.observed import PodSeen


def pods_that_cannot_end(draft: Draft, pods: Sequence[PodSeen]) -> tuple[PodSeen, ...]:
    """Those on lost nodes: their grace period is long over. Looks again when another one's is."""
    return tuple(pod for pod in pods if _seconds_left(draft, pod) <= 0)


def pods_that_may_end(draft: Draft, pods: Sequence[PodSeen]) -> tuple[PodSeen, ...]:
    """All others."""
    return tuple(pod for pod in pods if _seconds_left(draft, pod) > 0)


def _seconds_left(draft: Draft, pod: PodSeen) -> float:
    if pod.deletion_time is None:
        return float("inf")
    left = draft.settings.lost_pod_seconds - (draft.now - pod.deletion_time).total_seconds()
    if left > 0:
        draft.look_again(left)
    return left
