"""From a manifest to the settings of each optimizer. Pure."""

from __future__ import annotations

from rlhf_api.job import RLHFJobSpec
from rlhf_api.models import LearningRateSchedule
from rlhf_flow.losses import PolicyLoss, ValueLoss
from rlhf_runtime.engines.fsdp.settings import OptimizerSettings


def training_settings(
    spec: RLHFJobSpec, role: str, loss: PolicyLoss | ValueLoss
) -> OptimizerSettings:
    """How a role is trained by reinforcement learning."""
    training = spec.model_for(role).training
    updates = spec.schedule.updates_per_epoch * loss.epochs_per_batch
    return OptimizerSettings(
        learning_rate=training.learning_rate,
        beta1=training.adam_beta1,
        beta2=training.adam_beta2,
        epsilon=training.adam_epsilon,
        weight_decay=training.weight_decay,
        gradient_clip=training.gradient_clip,
        schedule=training.schedule,
        warmup_updates=training.warmup_steps,
        total_updates=training_steps(spec, role) * updates,
    )


def training_steps(spec: RLHFJobSpec, role: str) -> int:
    """Steps that train a role: all, but for the actor those of the critic's warm-up."""
    ppo = spec.algorithm.ppo
    idle = ppo.critic_warmup_steps if ppo is not None and role == "actor" else 0
    return spec.schedule.steps - idle


def warm_start_settings(spec: RLHFJobSpec) -> OptimizerSettings:
    """How the actor is trained on answers before reinforcement learning."""
    warm_start, training = spec.schedule.warm_start, spec.model_for("actor").training
    assert warm_start is not None
    return OptimizerSettings(
        learning_rate=warm_start.learning_rate,
        beta1=training.adam_beta1,
        beta2=warm_start.adam_beta2,
        epsilon=training.adam_epsilon,
        weight_decay=warm_start.weight_decay,
        gradient_clip=training.gradient_clip,
        schedule=LearningRateSchedule.CONSTANT,
        warmup_updates=0,
        total_updates=warm_start.max_steps,
    )
