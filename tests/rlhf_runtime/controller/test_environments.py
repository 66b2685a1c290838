"""Failures of environments, and differences between those of nodes, that end a job."""

from __future__ import annotations

import pytest

from rlhf_api.plan import GraphName
from rlhf_runtime.calls.reports import CallReport, EpisodeReport, Statistics
from rlhf_runtime.controller.environments import require_environments, require_same_tools
from rlhf_runtime.environments.errors import EnvironmentsFailed, ToolsChanged
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentDescription, ToolFacts


def report(number: int, num_failed: int, first_failure: str = "") -> CallReport:
    episodes = EpisodeReport(number, num_failed, first_failure)
    return CallReport("actor.generate", Statistics(), (), 0, episodes=episodes)


OTHER = CallReport("actor.train", Statistics(), (), 0)


def test_as_many_failures_as_the_limit_are_allowed() -> None:
    reports = [OTHER, report(6, 0), report(4, 5, "late")]
    require_environments(reports, 0.5, GraphName.STEP, 3)
    require_environments([OTHER], 0.0, GraphName.STEP, 3)


def test_more_failures_end_the_job_with_the_first_traceback() -> None:
    reports = [report(6, 0), report(4, 1, "first"), report(2, 2, "second")]
    with pytest.raises(
        EnvironmentsFailed, match=r"got 3 of 12 in step 3, .* 0\.2 .*: first$"
    ) as caught:
        require_environments(reports, 0.2, GraphName.STEP, 3)
    assert (caught.value.first_step, caught.value.in_evaluation) == (3, False)


@pytest.mark.parametrize("number", range(1, 100))
def test_a_share_is_what_its_decimals_say(number: int) -> None:
    limit = number / 100
    require_environments([report(100, number, "late")], limit, GraphName.STEP, 3)
    with pytest.raises(EnvironmentsFailed):
        require_environments([report(100, number + 1, "late")], limit, GraphName.STEP, 3)


def with_tools(**descriptions: str) -> EnvironmentDescription:
    tools = {
        name: ToolFacts({"function": {"name": name, "description": text}}, repeats=False)
        for name, text in descriptions.items()
    }
    return EnvironmentDescription({"": ClassFacts(tools)})


@pytest.mark.parametrize("other", [{"look": "Look."}, {"look": "Look.", "go": "Run."}])
def test_nodes_whose_tools_differ_end_the_job(other: dict[str, str]) -> None:
    first = with_tools(look="Look.", go="Go.")
    require_same_tools([])
    require_same_tools([first, with_tools(go="Go.", look="Look.")])
    with pytest.raises(ToolsChanged, match=r"got go on one of them .*nodes 0 and 1 of"):
        require_same_tools([first, with_tools(**other)])
