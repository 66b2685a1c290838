"""Pods that Kubernetes ends for its own reasons: drained, preempted or lost nodes."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_operator.decide.observed import Observed, PodProblem

CONTAINER_FAILURES = ("ContainerFailed", "CrashLoop", "OutOfMemory")
"""Problems of pods whose cause is in their own containers."""
NODE_REASONS = ("NodeLost", "NodesMissing")
"""A driver's reasons for nodes that have left its Ray cluster."""


def is_head_disrupted(observed: Observed) -> bool:
    """True if the head's pod, or a pod that is gone, was ended by Kubernetes."""
    return any(problem.is_disruption for problem in _problems(observed, of_head=True))


def has_container_failed(observed: Observed) -> bool:
    """True if a container of the job's cluster has failed lately.

    A driver cannot tell this from a lost node: in both cases the pod leaves the Ray cluster.
    """
    return any(problem.reason in CONTAINER_FAILURES for problem in _problems(observed))


def is_node_lost(observed: Observed, reason: str) -> bool:
    """True if a driver has ended because nodes were drained, preempted or lost."""
    return reason in NODE_REASONS and not has_container_failed(observed)


def _problems(observed: Observed, of_head: bool = False) -> Iterator[PodProblem]:
    """Yield the problems of the pods of the job's cluster, and that of one that may be gone."""
    cluster = observed.job.status.cluster
    for pod in () if cluster is None else observed.cluster_pods(cluster.name):
        if pod.problem is not None and (pod.is_head or not of_head):
            yield pod.problem
    if observed.recent_problem is not None:
        yield observed.recent_problem
