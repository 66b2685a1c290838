"""Learning rates that a resume with another number of steps changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import LearningRateDecay
from rlhf_flow.trace.graph import Graph
from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.controller.optimizers import training_settings
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings


def changed_rates(
    job: RLHFJob, graphs: Mapping[GraphName, Graph], store: CheckpointStore
) -> Iterator[str]:
    """Yield a sentence for every role whose learning rate leaves the curve of the run so far.

    Args:
        job: the current manifest.
        graphs: its graphs.
        store: of the checkpoints from which training resumes.
    """
    record = next(store.records(), None)
    if record is None:
        return
    earlier, steps = record.spec["schedule"]["steps"], job.spec.schedule.steps
    if earlier == steps or steps <= record.step:
        return
    graph = graphs[GraphName.STEP]
    for role in graph.roles_with(CallKind.TRAIN):
        # Without a decay the rate does not depend on the number of steps.
        if job.spec.model_for(role).training.learning_rate_decay is LearningRateDecay.NONE:
            continue
        # A role that trains later than the first step has trained in fewer.
        update = max(0, _settings(job, role, graph, record.step).total_updates)
        before, after = (_rate(job, role, graph, number, update) for number in (earlier, steps))
        if before != after:
            yield (
                f"the learning rate of {role} is {after:.3g} in its next update, "
                + _last_rate(job, role, graph, record, update)
                + f"and would be {before:.3g} with the {earlier} steps of before: it decays until "
                f"the last of {steps} steps"
            )


def _last_rate(
    job: RLHFJob, role: str, graph: Graph, record: CheckpointRecord, updates: int
) -> str:
    """The rate of a role's last update, in words; empty if it is unknown."""
    # The peak is the only setting of the curve that the manifest may have changed since.
    training = record.spec["models"].get(role, {}).get("training", {})
    if not updates or "learningRate" not in training:
        return ""
    settings = _settings(job, role, graph, record.spec["schedule"]["steps"])
    rate = training["learningRate"] * settings.rate_factor(updates - 1)
    return f"after {rate:.3g} in its last one, "


def _settings(job: RLHFJob, role: str, graph: Graph, steps: int) -> OptimizerSettings:
    """Settings of a job with another number of steps."""
    schedule = job.spec.schedule.model_copy(update={"steps": steps})
    return training_settings(job.spec.model_copy(update={"schedule": schedule}), role, graph)


def _rate(job: RLHFJob, role: str, graph: Graph, steps: int, update: int) -> float:
    settings = _settings(job, role, graph, steps)
    return settings.learning_rate * settings.rate_factor(update)
