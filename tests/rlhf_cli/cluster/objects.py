"""Objects as a cluster gives them, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_cli.cluster.jobs import Job, read_job

MADE = "2026-01-02T03:00:00Z"
LATER = "2026-01-02T03:10:00Z"

SPEC: dict[str, Any] = {
    "algorithm": {"type": "GRPO"},
    "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
    "data": {"train": {"builtin": "SortDigits"}},
    "rewards": [{"function": {"entrypoint": "rlhf_runtime.rewards.exact_match:score"}}],
    "schedule": {"steps": 150, "promptsPerStep": 64},
    "rollout": {"samplesPerPrompt": 8},
}

RUNNING: dict[str, Any] = {
    "observedGeneration": 1,
    "phase": "Running",
    "gpus": 8,
    "gpuSeconds": 7200,
    "progress": {
        "phase": "Train",
        "step": 120,
        "totalSteps": 500,
        "percent": 24,
        "secondsRemaining": 15732,
        "tokensPerSecond": 51200,
        "reward": "0.71",
        "metrics": {"actor/kl": "0.021", "reward/mean": "0.71"},
        "lastReportTime": LATER,
    },
    "checkpoint": {"step": 100, "path": "/rlhf/run/checkpoints/step-00000100"},
    "attempts": 1,
    "cluster": {"name": "sort-1", "attempt": 1, "headPodUid": "abc", "admitted": True},
    "driver": {"submissionId": "sort-1-0", "attempt": 1, "restart": 0},
}


def submission(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    """A job as it is sent."""
    return {
        "apiVersion": "rlhf-operator.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": SPEC | spec,
    }


def condition(type: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": type,
        "status": status,
        "lastTransitionTime": LATER,
        "reason": reason,
        "message": message,
    }


def job(status: Mapping[str, Any] | None = None, name: str = "sort", **spec: Any) -> Job:
    """A job as the cluster has it."""
    document = submission(name, "team", **spec)
    document["metadata"] |= {
        "uid": f"uid-of-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": MADE,
    }
    return read_job(document | {"status": dict(status or {})})


def pod(
    name: str, namespace: str, labels: Mapping[str, str], running: bool = True
) -> dict[str, Any]:
    """A pod of one container, ray."""
    state = {"running": {}} if running else {"waiting": {"reason": "ContainerCreating"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {"containers": [{"name": "ray"}], "nodeName": "gpu-0"},
        "status": {
            "phase": "Running" if running else "Pending",
            "containerStatuses": [{"name": "ray", "ready": running, "state": state}],
        },
    }


def event(
    kind: str, name: str, reason: str, message: str, last: str = LATER, uid: str = ""
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason}", "namespace": "team", "creationTimestamp": last},
        "involvedObject": {"kind": kind, "name": name} | ({"uid": uid} if uid else {}),
        "type": "Warning" if reason.startswith(("Failed", "Back")) else "Normal",
        "reason": reason,
        "message": message,
        "lastTimestamp": last,
        "count": 1,
    }
