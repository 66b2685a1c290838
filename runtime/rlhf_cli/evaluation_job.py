"""The job of an evaluation alone: a manifest with another policy and without its training. Pure."""

from __future__ import annotations

from typing import Any

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import ModelSource

TRAINING_SECTIONS = ("checkpoint", "placement", "resources")
"""Sections of spec that shape training only. Roles that do not start need no devices."""


def evaluation_job(job: RLHFJob, policy: str, source: ModelSource) -> RLHFJob:
    """Make the job that evaluates a model.

    Seed, limits, data, rewards and precision stay as they are: numbers depend on them.

    Args:
        job: the manifest.
        policy: the role that answers.
        source: of the evaluated model.
    """
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec: dict[str, Any] = document["spec"]
    for section in TRAINING_SECTIONS:
        spec.pop(section, None)
    # A role without an entry of its own has the model of the actor.
    evaluated = spec["models"][policy if policy in spec["models"] else "actor"]
    evaluated["source"] = source.model_dump(mode="json", by_alias=True, exclude_none=True)
    # Read from the model's own files.
    evaluated.pop("shape", None)
    for model in spec["models"].values():
        precision = model.pop("training", {}).get("precision")
        model |= {"training": {"precision": precision}} if precision else {}
    for field in ("warmStart", "earlyStop"):
        spec["schedule"].pop(field, None)
    # Without a warm start nothing trains on answers.
    train = spec["data"]["train"]
    for part in (train, *(train.get("sources") or ())):
        part.pop("trainOn", None)
    # The only evaluation is not one of many, of which only some have samples.
    spec["schedule"]["evaluateEverySteps"] = 0
    rollout = spec.setdefault("rollout", {})
    rollout.pop("stageFusionThreshold", None)
    rollout["stageFusion"] = "Never"
    # No trackers, but samples as in the job.
    samples = job.spec.telemetry.samples_every_steps
    spec["telemetry"] = {"tensorboard": False, "samplesEverySteps": samples}
    return RLHFJob.model_validate(document)
