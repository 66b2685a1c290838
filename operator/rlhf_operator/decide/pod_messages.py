"""Messages about pods and their problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlhf_operator.decide.observed import ObservedPod, PodProblem

SHOWN_PROBLEMS = 3
"""Problems that a message names; the others are counted."""


def describe_pods(pods: Sequence[ObservedPod], desired: Mapping[str, int]) -> str:
    """Return how many pods are ready, and the problems of the others.

    Args:
        desired: workers by node pool.
    """
    current = [pod for pod in pods if not pod.is_deleting]
    ready, num_workers = sum(pod.is_ready for pod in current), sum(desired.values())
    parts = [f"{ready} of {1 + num_workers} pods are ready{_incomplete_pools(current, desired)}"]
    parts += _problems(current)
    ending = sorted(pod.name for pod in pods if pod.is_deleting)
    if ending and ready <= num_workers:
        parts.append(
            f"{ending[0]} is still terminating: if its node is lost, delete the node, or the pod "
            "by force"
        )
    return "; ".join(parts)


def _incomplete_pools(pods: Sequence[ObservedPod], desired: Mapping[str, int]) -> str:
    if len(desired) < 2:
        return ""
    ready = Counter(pod.pool for pod in pods if pod.is_ready)
    return "".join(
        f", of pool {pool} {ready[pool]} of {number}"
        for pool, number in desired.items()
        if ready[pool] < number
    )


def _problems(pods: Sequence[ObservedPod]) -> list[str]:
    """Return the first problem of each pool and reason, and the number of the others."""
    # Pods of one pool mostly have the same problem.
    all_problems = [(pod.pool, problem) for pod in pods if (problem := named_problem(pod))]
    first: dict[tuple[str | None, str], str] = {}
    for pool, problem in all_problems:
        first.setdefault((pool, problem.reason), problem.message)
    messages = list(first.values())[:SHOWN_PROBLEMS]
    more = len(all_problems) - len(messages)
    return [*messages, f"and {more} more"] if more else messages


def named_problem(pod: ObservedPod) -> PodProblem | None:
    """Return a pod's problem with the names of pod and pool in its message."""
    if pod.problem is None:
        return None
    # KubeRay may shorten the pool in a pod's name.
    name = pod.name if pod.pool is None else f"{pod.name} of pool {pod.pool}"
    return replace(pod.problem, message=f"{name}: {pod.problem.message}")


def worst_problem(pods: Sequence[ObservedPod]) -> PodProblem | None:
    """Return the head's problem, else that of the first worker by name."""
    blocked = [pod for pod in pods if pod.problem is not None and not pod.is_deleting]
    first = min(blocked, key=lambda pod: (not pod.is_head, pod.name), default=None)
    return None if first is None else named_problem(first)
