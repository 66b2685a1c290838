"""From Kubernetes' JSON to what decisions are made from: whatever the JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.reading.status import read_status
from rlhf_api.status import (
    ClusterStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    DriverStatus,
    JobPhase,
    RLHFJobStatus,
)
from rlhf_operator.config import JobDefaults
from rlhf_operator.decide.observed import ObservedClaim
from rlhf_operator.observe.parse import (
    find_pod_problem,
    is_managed_here,
    parse_claim,
    parse_cluster,
    parse_job,
    parse_pod,
)

from .world import manifest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
METADATA = {
    "name": "sort-1-head-0",
    "namespace": "team",
    "uid": "u-1",
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
NAMES = (
    *("phase", "conditions", "cluster", "driver", "attempt", "name", "progress", "metrics"),
    *("type", "status", "reason", "message", "spec", "containerStatuses", "state", "waiting"),
    *("terminated", "lastState", "workerGroupSpecs", "replicas", "suspend", "restarts"),
)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=24,
)


def full_status() -> RLHFJobStatus:
    """A status with something of most kinds."""

    def condition(type: ConditionType) -> Condition:
        return Condition(
            type=type,
            status=ConditionStatus.TRUE,
            last_transition_time=NOW,
            reason="Why",
            message="words",
        )

    return RLHFJobStatus(
        observed_generation=3,
        phase=JobPhase.RUNNING,
        attempts=2,
        conditions=(
            condition(ConditionType.READY),
            condition(ConditionType.ACCEPTED),
            condition(ConditionType.CLUSTER_READY),
        ),
        cluster=ClusterStatus(name="sort-2", attempt=2),
        driver=DriverStatus(submission_id="sort-2-0", attempt=2, restart=0),
    )


def written(status: RLHFJobStatus) -> dict[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


@given(json)
@settings(derandomize=True, deadline=None)
def test_any_json_in_the_place_of_a_status_is_read(raw: Any) -> None:
    assert isinstance(read_status(raw), RLHFJobStatus)


@given(st.dictionaries(st.sampled_from(list(RLHFJobStatus.model_fields)), json), st.data())
@settings(derandomize=True, deadline=None)
def test_a_damaged_status_is_read_and_its_good_fields_are_kept(
    damage: dict[str, Any], data: st.DataObject
) -> None:
    aliases = {name: field.alias for name, field in RLHFJobStatus.model_fields.items()}
    document = written(full_status())
    document.update({str(aliases[name]): value for name, value in damage.items()})
    read = read_status(document)
    for name in {"phase", "attempts", "cluster", "driver", "conditions"} - damage.keys():
        assert getattr(read, name) == getattr(full_status(), name)


def test_a_status_is_read_as_it_was_written() -> None:
    assert read_status(written(full_status())) == full_status()


def test_fields_of_another_version_are_left_out_and_the_rest_is_kept() -> None:
    document = written(full_status())
    document["colour"] = "red"
    document["cluster"]["zone"] = {"a": 1}
    document["conditions"][0]["severity"] = "high"
    assert read_status(document) == full_status()


def test_words_of_another_version_are_kept_and_mean_nothing() -> None:
    document = written(full_status())
    document["phase"] = "Dreaming"
    document["conditions"].append({**document["conditions"][1], "type": "Invented"})
    read = read_status(document)
    assert (read.phase, read.conditions[-1].type) == ("Dreaming", "Invented")
    assert read.conditions[:-1] == full_status().conditions


def test_every_bad_item_of_a_list_is_left_out_and_no_other() -> None:
    document = written(full_status())
    document["conditions"][0]["status"] = ""
    document["conditions"][1]["lastTransitionTime"] = "yesterday"
    assert read_status(document).conditions == full_status().conditions[2:]


def test_what_lacks_a_field_is_left_out_whole() -> None:
    document = written(full_status())
    del document["cluster"]["attempt"]
    read = read_status(document)
    assert read.cluster is None
    assert read.driver == full_status().driver and read.attempts == 2


def test_a_bad_metric_is_left_out() -> None:
    document = written(full_status())
    document["progress"] = {
        "phase": "Train",
        "step": 1,
        "totalSteps": 2,
        "percent": 50,
        "metrics": {"actor/loss": "0.5", "not a name": "1", "actor/kl": "much"},
        "lastReportTime": "2026-01-01T00:00:00Z",
    }
    progress = read_status(document).progress
    assert progress is not None and progress.metrics == {"actor/loss": "0.5"}


@given(json, json)
@settings(derandomize=True, deadline=None)
def test_any_pod_cluster_and_claim_is_read(one: Any, other: Any) -> None:
    raw = {"metadata": {**METADATA, "labels": one, "ownerReferences": other}}
    for part in ("status", "spec"):
        for value in (one, {"conditions": one, "containerStatuses": other}, {"suspend": other}):
            document = {**raw, part: value}
            parse_pod(document)
            parse_cluster(document, "sort", "u-0", "key")
            parse_claim(document)
            is_managed_here(document)


@given(json)
@settings(derandomize=True, deadline=None)
def test_any_specification_is_refused_or_read(spec: Any) -> None:
    document = {
        "apiVersion": "rlhf-operator.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": METADATA,
        "spec": spec,
    }
    observed = parse_job(document, JobDefaults())
    assert (observed.job is None) == (observed.problem is not None)


def test_a_refusal_names_some_problems_and_counts_the_others() -> None:
    document = manifest()
    document["spec"] |= {f"unknown{number}": 1 for number in range(9)}
    document["metadata"] |= METADATA
    problem = parse_job(document, JobDefaults()).problem
    assert problem is not None and problem.reason == "InvalidManifest"
    assert "unknown0" in problem.message and "and 4 more problems" in problem.message


def test_what_others_have_put_on_a_job_is_no_reason_to_refuse_it() -> None:
    raw = {
        **manifest("sort"),
        "metadata": {
            **METADATA,
            "labels": {f"team-{number}": "a" for number in range(100)},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 50_000},
        },
    }
    observed = parse_job(raw, JobDefaults())
    assert observed.problem is None and observed.job is not None


def test_only_jobs_of_this_operator_are_its_own() -> None:
    assert is_managed_here({"spec": {}})
    assert is_managed_here({"spec": {"managedBy": "rlhf-operator.dev/operator"}})
    assert not is_managed_here({"spec": {"managedBy": "example.com/other"}})


def test_a_cluster_is_the_jobs_only_if_the_job_controls_it() -> None:
    def owned_by(*owners: dict[str, Any]) -> bool:
        raw = {"metadata": {**METADATA, "ownerReferences": list(owners)}}
        return parse_cluster(raw, "sort", "u-0", "key").is_owned

    assert owned_by({"uid": "u-0", "controller": True})
    assert owned_by({"uid": "u-9"}, {"uid": "u-0", "controller": True})
    assert not owned_by({"uid": "u-0"})
    assert not owned_by({"uid": "u-9", "controller": True})
    assert not owned_by()


@pytest.mark.parametrize(
    ("changes", "is_of_earlier_job"),
    [
        ({}, True),
        ({"uid": "u-0"}, False),
        ({"name": "other"}, False),
        ({"kind": "ConfigMap"}, False),
        ({"controller": False}, False),
    ],
)
def test_a_cluster_is_of_an_earlier_job_if_one_of_this_name_controlled_it(
    changes: dict[str, Any], is_of_earlier_job: bool
) -> None:
    owner = {"kind": "RLHFJob", "name": "sort", "uid": "u-9", "controller": True, **changes}
    raw = {"metadata": {**METADATA, "ownerReferences": [owner]}}
    assert parse_cluster(raw, "sort", "u-0", "key").is_of_earlier_job is is_of_earlier_job


def test_a_cluster_wants_the_workers_of_all_its_groups() -> None:
    groups = [{"replicas": 2}, {"replicas": 0}, {}]
    raw = {"metadata": METADATA, "spec": {"workerGroupSpecs": groups}}
    observed = parse_cluster(raw, "sort", "u-0", "key")
    assert (
        observed.num_desired_workers == 3 and not observed.is_suspended and not observed.is_deleting
    )


@pytest.mark.parametrize(
    ("modes", "is_shared"),
    [
        (["ReadWriteMany"], True),
        (["ReadWriteOnce", "ReadWriteMany"], True),
        (["ReadOnlyMany"], False),
    ],
)
def test_a_claim_is_shared_if_many_nodes_may_write(modes: list[str], is_shared: bool) -> None:
    assert parse_claim({"spec": {"accessModes": modes}}) == ObservedClaim(True, is_shared)
    assert parse_claim(None) == ObservedClaim(False, False)


def container(**fields: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "ray-worker", "image": "runtime:1", **fields}]}


def waiting(reason: str, message: str = "words") -> dict[str, Any]:
    return container(state={"waiting": {"reason": reason, "message": message}})


def scheduled(status: str, reason: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": status, "reason": reason, "message": "0/4 nodes"}
    return {"conditions": [condition]}


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ({"reason": "Evicted", "message": "low on memory"}, "Evicted", "low on memory"),
        (scheduled("False", "Unschedulable"), "Unschedulable", "0/4 nodes"),
        (waiting("ImagePullBackOff"), "ImagePull", "image runtime:1: ImagePullBackOff: words"),
        (waiting("ErrImagePull"), "ImagePull", "ErrImagePull"),
        (waiting("InvalidImageName"), "ImagePull", "InvalidImageName"),
        (waiting("CreateContainerConfigError"), "Configuration", "words"),
        (
            container(
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"exitCode": 7}},
            ),
            "CrashLoop",
            "exit code 7",
        ),
        (container(state={"terminated": {"exitCode": 3}}), "ContainerFailed", "exit code 3"),
        (
            container(state={"terminated": {"reason": "OOMKilled", "exitCode": 137}}),
            "OutOfMemory",
            "more memory than its limit",
        ),
        (
            container(
                ready=False,
                state={"running": {}},
                lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            ),
            "OutOfMemory",
            "ray-worker",
        ),
        (
            {"initContainerStatuses": waiting("ErrImagePull")["containerStatuses"]},
            "ImagePull",
            "runtime:1",
        ),
    ],
)
def test_what_keeps_a_pod_from_running_is_told(
    status: dict[str, Any], reason: str, said: str
) -> None:
    problem = find_pod_problem({"metadata": METADATA, "status": status})
    assert problem is not None and problem.reason == reason and said in problem.message


@pytest.mark.parametrize(
    "status",
    [
        {},
        scheduled("True", ""),
        scheduled("False", "SchedulingGated"),
        waiting("PodInitializing"),
        container(state={"terminated": {"exitCode": 0, "reason": "Completed"}}),
        container(
            ready=True,
            state={"running": {}},
            lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
        ),
    ],
)
def test_a_pod_on_its_way_has_no_problem(status: dict[str, Any]) -> None:
    assert find_pod_problem({"metadata": METADATA, "status": status}) is None


def test_a_pod_is_ready_when_its_kubelet_says_so() -> None:
    def is_ready(**status: Any) -> bool:
        return parse_pod({"metadata": METADATA, "status": status}).is_ready

    assert is_ready(conditions=[{"type": "Ready", "status": "True"}])
    assert not is_ready(conditions=[{"type": "Ready", "status": "False"}])
    assert not is_ready(conditions=[{"type": "Initialized", "status": "True"}])
    assert not is_ready()
