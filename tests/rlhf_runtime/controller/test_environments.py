"""Failures of environments that end a job."""

from __future__ import annotations

import pytest

from rlhf_api.plan import GraphName
from rlhf_runtime.calls.reports import CallReport, EpisodeReport, Statistics
from rlhf_runtime.controller.environments import require_environments
from rlhf_runtime.environments.errors import EnvironmentsFailed


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
    with pytest.raises(EnvironmentsFailed, match=r"got 3 of 12 in step 3, .* 0\.2 .*: first$"):
        require_environments(reports, 0.2, GraphName.STEP, 3)
