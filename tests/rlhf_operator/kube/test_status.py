"""The status of a job, which is written apart: a real API server and the fake answer alike."""

from __future__ import annotations

import pytest

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Conflict

from .stage import Stage


def test_a_status_is_replaced_as_a_whole_and_nothing_else_is(stage: Stage) -> None:
    stage.kube.create(stage.job())
    before = stage.read(Kind.JOB, "sort")
    status = {"phase": "Running", "observedGeneration": 1, "gpus": 8, "attempts": 2}
    first = stage.kube.apply_status(stage.of_job(status=status))
    assert first["status"].items() >= status.items()
    assert first["metadata"]["generation"] == before["metadata"]["generation"]
    assert first["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    less = {"phase": "Suspended", "observedGeneration": 1}
    second = stage.kube.apply_status(stage.of_job(status=less, spec={"suspend": True}))
    assert second["status"]["phase"] == "Suspended"
    assert not second["status"].get("gpus") and not second["status"].get("attempts")
    assert second["spec"] == before["spec"]
    assert stage.kube.apply_status(stage.of_job(status=less)) == second


def test_a_status_is_written_only_over_the_version_that_was_read(stage: Stage) -> None:
    stage.kube.create(stage.job())
    status = {"phase": "Running", "observedGeneration": 1}
    guard = {"resourceVersion": stage.read(Kind.JOB, "sort")["metadata"]["resourceVersion"]}
    stage.kube.apply_status(stage.of_job(metadata=guard, status=status))
    with pytest.raises(Conflict):
        stage.kube.apply_status(stage.of_job(metadata=guard, status=status))


def test_the_uid_does_not_guard_a_status(stage: Stage) -> None:
    """Who relies on it writes over another job of the same name."""
    stage.kube.create(stage.job())
    stranger = stage.of_job(metadata={"uid": "some-uid"}, status={"phase": "Running"})
    assert stage.kube.apply_status(stranger)["status"]["phase"] == "Running"


def test_the_status_of_what_is_gone_is_not_written(stage: Stage) -> None:
    with pytest.raises(Conflict):
        stage.kube.apply_status(stage.of_job("none", status={"phase": "Running"}))
    assert stage.kube.get(Kind.JOB, stage.namespace, "none") is None
