"""Jobs for the tests of the flow and the planner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_api.spec.job import RLHFJob

MakeJob = Callable[..., RLHFJob]


def make_job(**sections: Any) -> RLHFJob:
    """A small GRPO job; keyword arguments replace sections of its spec."""
    spec: dict[str, Any] = {
        "algorithm": {"type": "GRPO"},
        "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
        "data": {"train": {"path": "train.jsonl"}},
        "rewards": [{"function": {"entrypoint": "verifiers:exact"}}],
        "schedule": {"steps": 10, "promptsPerStep": 16},
        "rollout": {"samplesPerPrompt": 4, "maxPromptTokens": 32, "maxResponseTokens": 32},
    }
    return RLHFJob.model_validate(
        {
            "apiVersion": "rlhf-operator.dev/v1alpha1",
            "kind": "RLHFJob",
            "metadata": {"name": "test"},
            "spec": spec | sections,
        }
    )


@pytest.fixture(scope="session")
def job() -> MakeJob:
    """Makes jobs."""
    return make_job
