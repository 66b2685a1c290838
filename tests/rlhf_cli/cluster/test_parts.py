"""Events about a job's parts, and what keeps its pods from running."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rlhf_cli.cluster.events import events_table, is_about, read_event
from rlhf_cli.cluster.job_text import age
from rlhf_cli.cluster.pods import is_running, is_stuck, pod_problems, pods_text

from .objects import LATER, RUNNING, event, job, pod

NOW = datetime(2026, 1, 2, 3, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("told", "is_meant"),
    [
        (event("RLHFJob", "sort", "Planned", "", uid="uid-of-sort"), True),
        (event("RLHFJob", "sort", "Planned", "", uid="of an earlier one"), False),
        (event("RayCluster", "sort-1", "Created", ""), True),
        (event("RayCluster", "sort-0", "Created", ""), False),
        (event("RayCluster", "sort-7", "Created", ""), False),
        (event("Pod", "sort-1-head-x7k2p", "Pulled", ""), True),
        (event("Pod", "sort-1-a100-worker-x7k2p", "Pulled", ""), True),
        (event("Pod", "sort-1-head-x7k2p", "Pulled", "", last="2026-01-02T02:59:00Z"), False),
        (event("Pod", "sort-1-1-head-x7k2p", "Pulled", ""), False),
        (event("Pod", "sorted-1-head-x7k2p", "Pulled", ""), False),
    ],
)
def test_events_of_a_job_are_those_of_all_its_parts(told: dict[str, Any], is_meant: bool) -> None:
    assert is_about(job(RUNNING), told) is is_meant


def test_events_of_the_clusters_of_a_suspended_job_are_its_own() -> None:
    suspended = job({"phase": "Suspended", "observedGeneration": 1, "attempts": 2})
    names = [f"sort-{attempt}-head-x7k2p" for attempt in (1, 2, 3)]
    told = [is_about(suspended, event("Pod", name, "OOMKilling", "")) for name in names]
    assert told == [True, True, False]


def test_events_are_told_on_a_line_each() -> None:
    often = event("Pod", "sort-1-head-x", "BackOff", "pulling\n  the image") | {"count": 7}
    assert events_table([read_event(often)], NOW) == (
        "LAST SEEN   TYPE      REASON    OBJECT              MESSAGE\n"
        "20m (x7)    Warning   BackOff   Pod/sort-1-head-x   pulling the image\n"
    )
    assert events_table([], NOW).startswith("No events")


def test_events_of_the_newer_kind_are_read_too() -> None:
    series = {"count": 3, "lastObservedTime": "2026-01-02T03:20:00.123456Z"}
    newer = event("Pod", "x", "Started", "") | {"lastTimestamp": None, "count": None}
    read = read_event(newer | {"eventTime": LATER, "series": series})
    assert (read.count, age(read.last, NOW)) == (3, "9m59s")


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    found = pod("sort-1-head-x", "team", {}, running=False)
    state = {"waiting": {"reason": reason, "message": message}}
    found["status"]["containerStatuses"][0]["state"] = state
    return found


def test_a_pod_that_starts_or_runs_has_no_problem() -> None:
    for fine in (waiting("ContainerCreating"), pod("p", "team", {})):
        assert pod_problems(fine) == [] and not is_stuck(fine)
    assert is_running(pod("p", "team", {})) and not is_running(waiting("ContainerCreating"))


def test_an_image_that_cannot_be_pulled_is_a_problem() -> None:
    found = waiting("ImagePullBackOff", "no such image")
    assert pod_problems(found) == ["container ray: ImagePullBackOff: no such image"]
    assert is_stuck(found)


def test_a_pod_without_a_node_says_what_the_scheduler_says() -> None:
    found = pod("p", "team", {}, running=False)
    found["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/4 nodes",
        }
    ]
    del found["status"]["containerStatuses"]
    assert pod_problems(found) == ["Unschedulable: 0/4 nodes"] and not is_stuck(found)


def test_a_pod_that_was_killed_for_memory_says_so_after_its_restart() -> None:
    found = pod("p", "team", {})
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    found["status"]["containerStatuses"][0]["lastState"] = ended
    assert pod_problems(found) == ["container ray: OOMKilled, exit code 137"]


def test_a_pod_that_was_evicted_says_so_and_is_over() -> None:
    found = pod("p", "team", {}, running=False)
    found["status"] = {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}
    assert pod_problems(found) == ["Evicted: disk pressure"] and is_stuck(found)


def test_pods_are_listed_with_their_problems_below() -> None:
    found = waiting("ErrImagePull")
    found["metadata"]["creationTimestamp"] = LATER
    assert pods_text([found], NOW).splitlines()[1:] == [
        "sort-1-head-x   Pending   0/1     gpu-0   20m",
        "  container ray: ErrImagePull",
    ]
