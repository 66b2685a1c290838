"""What is told of objects that do not go well."""

from __future__ import annotations

from typing import Any

from .stage import Stage


def event(stage: Stage, uid: str, type: str, reason: str, note: str) -> dict[str, Any]:
    regarding = {"apiVersion": "v1", "kind": "Pod", "name": "one", "namespace": stage.namespace}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "one-", "namespace": stage.namespace},
        "regarding": {**regarding, "uid": uid},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/test",
        "reportingInstance": "test",
        "action": "Test",
        "reason": reason,
        "type": type,
        "note": note,
    }


def test_only_warnings_of_the_very_object_are_told(stage: Stage) -> None:
    stage.kube.create(event(stage, "u-1", "Warning", "FailedMount", "no such volume"))
    stage.kube.create(event(stage, "u-1", "Normal", "Scheduled", "to a node"))
    stage.kube.create(event(stage, "u-2", "Warning", "FailedMount", "another pod's"))
    assert stage.kube.warnings(stage.namespace, "u-1") == ("FailedMount: no such volume",)
    assert stage.kube.warnings(stage.namespace, "u-3") == ()
