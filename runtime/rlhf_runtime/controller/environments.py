"""Ends a job whose environments fail. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_api.plan import GraphName
from rlhf_runtime.calls.reports import CallReport
from rlhf_runtime.controller.scoring import describe_pass
from rlhf_runtime.environments.errors import EnvironmentsFailed


def require_environments(
    reports: Sequence[CallReport], max_share: float, graph: GraphName, step: int
) -> None:
    """Check that few conversations of a pass have failed.

    Args:
        reports: of all calls of the pass.
        max_share: largest share of conversations that may fail.
        graph: the pass, for the message.
        step: for the message.

    Raises:
        EnvironmentsFailed: more have.
    """
    parts = [report.episodes for report in reports if report.episodes is not None]
    count = sum(part.num_episodes for part in parts)
    num_failed = sum(part.num_failed for part in parts)
    if num_failed <= max_share * count:
        return
    first = next(part.first_failure for part in parts if part.num_failed)
    raise EnvironmentsFailed(
        f"environments failed in too many conversations: got {num_failed} of {count} in "
        f"{describe_pass(graph, step)}, allowed a share of {max_share:g} "
        "(rollout.environment.maxFailedShare); correct the environment, or raise the limit. The "
        f"first failure: {first}"
    )
