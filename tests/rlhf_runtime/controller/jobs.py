"""Small jobs for the tests of the controller and the workers."""

from __future__ import annotations

from typing import Any

from rlhf_api.spec.job import RLHFJob


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
