"""Pods and what keeps them from running, told to people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlhf_operator.decide.observed import PodProblem, PodSeen

SHOWN = 3
"""Problems that one message names; the rest are counted."""


def describe_pods(pods: Sequence[PodSeen], wanted: Mapping[str, int]) -> str:
    """How many are ready, and what the others lack.

    Args:
        wanted: workers of each node pool.
    """
    there = [pod for pod in pods if not pod.is_deleting]
    ready, wanted_workers = sum(pod.is_ready for pod in there), sum(wanted.values())
    words = [f"{ready} of {1 + wanted_workers} pods are ready{_short_pools(there, wanted)}"]
    words += _problems(there)
    ending = sorted(pod.name for pod in pods if pod.is_deleting)
    if ending and ready <= wanted_workers:
        words.append(
            f"{ending[0]} has still to end: where its node is lost, delete the node, or the pod by "
            "force"
        )
    return "; ".join(words)


def _short_pools(pods: Sequence[PodSeen], wanted: Mapping[str, int]) -> str:
    """Where there are several pools, those that lack pods."""
    if len(wanted) < 2:
        return ""
    ready = Counter(pod.pool for pod in pods if pod.is_ready)
    return "".join(
        f", of pool {pool} {ready[pool]} of {number}"
        for pool, number in wanted.items()
        if ready[pool] < number
    )


def _problems(pods: Sequence[PodSeen]) -> list[str]:
    """One pod's of each pool and reason: others of its pool lack the same, as a rule."""
    troubled = [(pod.pool, problem) for pod in pods if (problem := told_problem(pod))]
    first: dict[tuple[str | None, str], str] = {}
    for pool, problem in troubled:
        first.setdefault((pool, problem.reason), problem.message)
    words = list(first.values())[:SHOWN]
    more = len(troubled) - len(words)
    return [*words, f"and {more} more"] if more else words


def told_problem(pod: PodSeen) -> PodProblem | None:
    """What keeps a pod from running, with its name: that alone may be cut before its pool's."""
    if pod.problem is None:
        return None
    name = pod.name if pod.pool is None else f"{pod.name} of pool {pod.pool}"
    return replace(pod.problem, message=f"{name}: {pod.problem.message}")


def worst_problem(pods: Sequence[PodSeen]) -> PodProblem | None:
    """The one to tell first: the head's, else the first worker's by name."""
    troubled = [pod for pod in pods if pod.problem is not None and not pod.is_deleting]
    first = min(troubled, key=lambda pod: (not pod.is_head, pod.name), default=None)
    return None if first is None else told_problem(first)
