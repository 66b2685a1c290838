"""Pods and what keeps them from running, told to people."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_operator.decide.observed import PodProblem, PodSeen

SHOWN = 3
"""Problems that one message names; the rest are counted."""


def describe_pods(pods: Sequence[PodSeen], wanted_workers: int) -> str:
    """How many are ready, and what the others lack."""
    there = [pod for pod in pods if not pod.is_deleting]
    ready = sum(pod.is_ready for pod in there)
    words = [f"{ready} of {1 + wanted_workers} pods are ready"]
    troubled = [(pod, pod.problem) for pod in there if pod.problem is not None]
    words += [f"{pod.name}: {problem.message}" for pod, problem in troubled[:SHOWN] if problem]
    if len(troubled) > SHOWN:
        words.append(f"and {len(troubled) - SHOWN} more")
    ending = sorted(pod.name for pod in pods if pod.is_deleting)
    if ending and ready <= wanted_workers:
        words.append(
            f"{ending[0]} has still to end: where its node is lost, delete the node, or the pod by "
            "force"
        )
    return "; ".join(words)


def worst_problem(pods: Sequence[PodSeen]) -> PodProblem | None:
    """The one to tell first: the head's, else the first worker's by name."""
    troubled = [pod for pod in pods if pod.problem is not None and not pod.is_deleting]
    first = min(troubled, key=lambda pod: (not pod.is_head, pod.name), default=None)
    return None if first is None else first.problem
