"""Ends a job whose environments fail, or differ between nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.plan import GraphName
from rlhf_runtime.calls.reports import CallReport
from rlhf_runtime.controller.scoring import describe_pass
from rlhf_runtime.environments.errors import EnvironmentsFailed, ToolsChanged
from rlhf_runtime.environments.settings import EnvironmentDescription, ToolFacts


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
    # A quotient is rounded as the limit was read: 0.29 of 100 are 29.
    if not num_failed or num_failed / count <= max_share:
        return
    first = next(part.first_failure for part in parts if part.num_failed)
    raise EnvironmentsFailed(
        f"environments failed in too many conversations: got {num_failed} of {count} in "
        f"{describe_pass(graph, step)}, allowed a share of {max_share:g} "
        "(rollout.environment.maxFailedShare); correct the environment, and give the same command "
        f"again; a new run may have a higher limit. The first failure: {first}",
        step,
        graph is GraphName.EVALUATION,
    )


def require_same_tools(descriptions: Sequence[EnvironmentDescription]) -> None:
    """Check that all hosts of conversations have the same tools: prompts describe the first one's.

    Args:
        descriptions: by host; empty without conversations.

    Raises:
        ToolsChanged: a tool differs.
    """
    for number, other in enumerate(descriptions[1:], start=1):
        for name, facts in descriptions[0].environments.items():
            now = other.environments[name].tools if name in other.environments else {}
            if different := (facts.tools.keys() | now.keys()) - _equal(facts.tools, now):
                raise ToolsChanged(
                    f"the tools of two nodes differ: got {min(different)} on one of them only, or "
                    f"another schema (nodes 0 and {number} of those with conversations), allowed "
                    "the same tools everywhere, because all prompts describe them; use the same "
                    "code and the same version of each server"
                )


def _equal(one: Mapping[str, ToolFacts], other: Mapping[str, ToolFacts]) -> set[str]:
    return {name for name, tool in one.items() if other.get(name) == tool}
