"""Optimizer settings from a manifest. Pure."""

from __future__ import annotations

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.models import LearningRateDecay
from rlhf_api.spec.schedule import ScheduleSpec
from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_flow.trace.graph import Graph
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings


def training_settings(spec: RLHFJobSpec, role: str, graph: Graph) -> OptimizerSettings:
    """Return a role's settings for reinforcement learning.

    Args:
        graph: of a step.
    """
    training = spec.model_for(role).training
    return OptimizerSettings(
        learning_rate=training.learning_rate,
        beta1=training.adam_beta1,
        beta2=training.adam_beta2,
        epsilon=training.adam_epsilon,
        weight_decay=training.weight_decay,
        gradient_clip=training.gradient_clip,
        decay=training.learning_rate_decay,
        warmup_updates=training.warmup_steps,
        total_updates=sum(
            _updates(spec.schedule, call, graph.expected_count(call.id))
            for call in graph.trainings(role)
        ),
    )


def _updates(schedule: ScheduleSpec, call: ModelCall, expected_count: float) -> int:
    options = call.options
    assert isinstance(options, TrainOptions)
    # A call may begin after the first step, and not run in every step.
    steps = int((schedule.steps - options.from_step) * expected_count)
    return steps * options.loss.updates(schedule.updates_per_epoch)


def warm_start_settings(spec: RLHFJobSpec, policy: str) -> OptimizerSettings:
    """Return the policy's settings for the warm start."""
    warm_start, training = spec.schedule.warm_start, spec.model_for(policy).training
    assert warm_start is not None
    return OptimizerSettings(
        learning_rate=warm_start.learning_rate,
        beta1=training.adam_beta1,
        beta2=warm_start.adam_beta2,
        epsilon=training.adam_epsilon,
        weight_decay=warm_start.weight_decay,
        gradient_clip=training.gradient_clip,
        decay=LearningRateDecay.NONE,
        warmup_updates=0,
        total_updates=warm_start.max_steps,
    )
