"""The algorithms of a job, by `spec.algorithm.type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Precision
from rlhf_api.spec.policy_loss import PolicyLossSettings
from rlhf_api.spec.resources import Device
from rlhf_flow.algorithms.dapo import Dapo
from rlhf_flow.algorithms.evaluation import Evaluation
from rlhf_flow.algorithms.policy_gradient import JobSettings, PolicyGradient
from rlhf_flow.algorithms.ppo import Ppo
from rlhf_flow.algorithms.preferences import DpoAlgorithm, OnlineDpo, RewardModel
from rlhf_flow.algorithms.remax import ReMax
from rlhf_flow.algorithms.safe_rlhf import SafeRlhf
from rlhf_flow.algorithms.supervised import Supervised
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.trace.entrypoints import build_custom

# Builds an algorithm from the settings of its type and from the job.
Builder = Callable[[Any, JobSettings], Algorithm]

# Types with one class differ in the settings only, by which it chooses operations.
ALGORITHMS: Mapping[AlgorithmType, Builder] = {
    AlgorithmType.PPO: Ppo,
    AlgorithmType.GRPO: PolicyGradient,
    AlgorithmType.DAPO: Dapo,
    AlgorithmType.RLOO: PolicyGradient,
    AlgorithmType.OPO: PolicyGradient,
    AlgorithmType.REINFORCE_PLUS_PLUS: PolicyGradient,
    AlgorithmType.REMAX: ReMax,
    AlgorithmType.SAFE_RLHF: SafeRlhf,
    AlgorithmType.DPO: lambda settings, job: DpoAlgorithm(settings),
    AlgorithmType.ONLINE_DPO: OnlineDpo,
    AlgorithmType.SFT: lambda settings, job: Supervised(settings.roles[0]),
    AlgorithmType.REWARD_MODEL: lambda settings, job: RewardModel(settings),
    AlgorithmType.CUSTOM: lambda settings, job: build_custom(
        settings.entrypoint, settings.parameters
    ),
}


def build_algorithm(job: RLHFJob, device: Device) -> Algorithm:
    """Build the algorithm of a job.

    Args:
        job: the manifest.
        device: it decides on the precision `Auto`.

    Raises:
        InvalidAlgorithm: a custom algorithm that cannot be imported or built.
    """
    settings = job.spec.algorithm.settings
    return ALGORITHMS[job.spec.algorithm.type](settings, _job_settings(job, device))


def _job_settings(job: RLHFJob, device: Device) -> JobSettings:
    settings, environment = job.spec.algorithm.settings, job.spec.rollout.environment
    # Only policy losses compare with old log-probabilities.
    reason = ""
    if isinstance(settings, PolicyLossSettings):
        policy, *_ = settings.roles
        reason = needs_old_log_probs(job, settings.epochs_per_batch, device, policy)
    return JobSettings(
        needs_old_log_probs=bool(reason),
        prompts_per_step=job.spec.schedule.prompts_per_step,
        max_response_tokens=job.spec.rollout.max_response_tokens,
        prompt_field=job.spec.data.train.prompt_field,
        turn_credit=None if environment is None else environment.turn_credit,
    )


def needs_old_log_probs(job: RLHFJob, epochs: int, device: Device, policy: str) -> str:
    """Decide if a policy loss needs log-probabilities by the trainer before the first update.

    Args:
        job: the manifest.
        epochs: passes over a batch.
        device: it decides on the precision `Auto`.
        policy: the trained role.

    Returns:
        The reason: several updates of a batch, or rounding that differs between the engines. Empty:
        the generation engine's log-probabilities serve.
    """
    updates = job.spec.schedule.updates_per_epoch * epochs
    # From the second update on the weights are not those that sampled: the ratio compares with the
    # weights before the first, by one engine.
    if updates > 1:
        return f"a batch has {updates} updates"
    precision = resolve_precision(job.spec.model_for(policy).training.precision, device)
    return "the trainer computes in bfloat16" if precision is Precision.BFLOAT16 else ""


def build_evaluation(job: RLHFJob, policy: str, rewards: Sequence[str]) -> Evaluation | None:
    """Build the evaluation of a job. None: the job has none.

    Args:
        job: the manifest.
        policy: the role that answers.
        rewards: the roles that score.
    """
    data = job.spec.data
    if data.evaluation is not None:
        evaluation = data.evaluation
        return Evaluation(
            policy,
            rewards,
            evaluation.samples_per_prompt,
            evaluation.temperature,
            evaluation.pass_at_k,
            evaluation.pass_score,
        )
    # A builtin task has its own evaluation prompts, which are answered greedily.
    is_scored = data.train.builtin is not None and bool(rewards)
    return Evaluation(policy, rewards) if is_scored else None


def build_warm_start(job: RLHFJob, policy: str) -> Supervised | None:
    """Build the supervised training before reinforcement learning. None: the job has none.

    Args:
        job: the manifest.
        policy: the trained role.
    """
    return Supervised(policy) if job.spec.schedule.warm_start is not None else None


def resolve_precision(precision: Precision, device: Device) -> Precision:
    """The precision of a role: `Auto` is bfloat16 on GPUs and float32 on CPUs."""
    if precision is not Precision.AUTO:
        return precision
    return Precision.BFLOAT16 if device is Device.GPU else Precision.FLOAT32
