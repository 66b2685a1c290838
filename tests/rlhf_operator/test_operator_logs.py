"""Log lines of the operator, and those that it asks jobs for."""

from __future__ import annotations

import json
import logging

import pytest

from rlhf_api.on_cluster import LOG_FIELDS_VARIABLE
from rlhf_api.status import ProgressStatus, RLHFJobStatus
from rlhf_kube.kinds import Kind
from rlhf_operator.process.logs import JsonLines, job_fields

from .test_operator_metrics import TIME
from .world import NAMESPACE, World, manifest


def test_a_line_about_a_job_has_its_attempt_and_step() -> None:
    progress = ProgressStatus(
        phase="Train", step=7, total_steps=9, percent=77, last_report_time=TIME
    )
    status = RLHFJobStatus(attempts=2, progress=progress)
    record = logging.LogRecord("operator", logging.INFO, "", 1, "it %s", ("runs",), None)
    record.__dict__.update(job_fields("team", "sort", status, "Running"))
    line = json.loads(JsonLines().format(record))
    assert line["message"] == "it runs" and line["level"] == "info"
    fields = {"job": "team/sort", "attempt": 2, "step": 7, "reason": "Running"}
    assert fields.items() <= line.items()
    assert "step" not in job_fields("team", "sort", RLHFJobStatus(), "Planning")


def test_events_are_logged_with_job_and_attempt(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        world.run_to_training()
    (record,) = (each for each in caplog.records if getattr(each, "reason", "") == "Running")
    assert (record.__dict__["job"], record.__dict__["attempt"]) == (f"{NAMESPACE}/sort", 1)


def variables(world: World) -> list[dict[str, str]]:
    """LOG_FIELDS_VARIABLE of the head and of the workers, if they have it."""
    cluster = world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"]["spec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [group["template"]["spec"]["containers"][0] for group in groups]
    return [
        json.loads(variable["value"])
        for container in containers
        for variable in container["env"]
        if variable["name"] == LOG_FIELDS_VARIABLE
    ]


@pytest.mark.parametrize("has_json_logs", [False, True])
def test_pods_of_a_job_log_objects_only_if_the_operator_says_so(
    world: World, has_json_logs: bool
) -> None:
    world.reconciler.performer.has_json_logs = has_json_logs
    job = manifest(env=[{"name": LOG_FIELDS_VARIABLE, "value": "{}"}] if has_json_logs else [])
    world.submit(job)
    world.settle()
    fields = {"job": f"{NAMESPACE}/sort", "attempt": 1}
    assert variables(world) == ([fields, fields] if has_json_logs else [])
