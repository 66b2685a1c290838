"""From a job to its algorithms: the one list of what `spec.algorithm.type` can name."""

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
from rlhf_flow.algorithms.policy_algorithm import JobFacts
from rlhf_flow.algorithms.policy_gradient import PolicyGradient
from rlhf_flow.algorithms.ppo import Ppo
from rlhf_flow.algorithms.preferences import Dpo, OnlineDpo, RewardModel
from rlhf_flow.algorithms.remax import ReMax
from rlhf_flow.algorithms.safe_rlhf import SafeRlhf
from rlhf_flow.algorithms.supervised import Supervised
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.trace.entrypoints import build_custom

Builder = Callable[[Any, JobFacts], Algorithm]
"""From the settings of its type and a job to an algorithm."""

ALGORITHMS: Mapping[AlgorithmType, Builder] = {
    AlgorithmType.PPO: Ppo,
    AlgorithmType.GRPO: PolicyGradient,
    AlgorithmType.DAPO: Dapo,
    AlgorithmType.RLOO: PolicyGradient,
    AlgorithmType.OPO: PolicyGradient,
    AlgorithmType.REINFORCE_PLUS_PLUS: PolicyGradient,
    AlgorithmType.REMAX: ReMax,
    AlgorithmType.SAFE_RLHF: SafeRlhf,
    AlgorithmType.DPO: lambda settings, job: Dpo(settings),
    AlgorithmType.ONLINE_DPO: OnlineDpo,
    AlgorithmType.SFT: lambda settings, job: Supervised(settings.roles[0]),
    AlgorithmType.REWARD_MODEL: lambda settings, job: RewardModel(settings),
    AlgorithmType.CUSTOM: lambda settings, job: build_custom(
        settings.entrypoint, settings.parameters
    ),
}


def build_algorithm(job: RLHFJob, device: Device) -> Algorithm:
    """The algorithm that a job runs.

    Args:
        job: the manifest.
        device: what it computes on; it decides what precision `Auto` is.

    Raises:
        InvalidAlgorithm: a custom algorithm that cannot be imported or built.
    """
    settings = job.spec.algorithm.settings
    return ALGORITHMS[job.spec.algorithm.type](settings, _facts(job, device))


def _facts(job: RLHFJob, device: Device) -> JobFacts:
    settings = job.spec.algorithm.settings
    why = ""
    if isinstance(settings, PolicyLossSettings):
        policy, *_ = settings.roles
        why = needs_old_log_probs(job, settings.epochs_per_batch, device, policy)
    return JobFacts(
        needs_old_log_probs=bool(why),
        prompts_per_step=job.spec.schedule.prompts_per_step,
        max_response_tokens=job.spec.rollout.max_response_tokens,
        prompt_field=job.spec.data.train.prompt_field,
    )


def needs_old_log_probs(job: RLHFJob, epochs: int, device: Device, policy: str) -> str:
    """Why the generation engine's log-probabilities are not those under which the policy's first
    update begins: several updates, or engines that differ by rounding. Empty: they are.

    Args:
        job: the manifest.
        epochs: of a batch.
        device: what it computes on.
        policy: the role that is trained.
    """
    updates = job.spec.schedule.updates_per_epoch * epochs
    if updates > 1:
        return f"a batch has {updates} updates"
    precision = resolve_precision(job.spec.model_for(policy).training.precision, device)
    return "the trainer computes in bfloat16" if precision is Precision.BFLOAT16 else ""


def build_evaluation(job: RLHFJob, policy: str, rewards: Sequence[str]) -> Evaluation | None:
    """How held-out prompts are answered; None where the job has none.

    A builtin task brings its own held-out prompts, answered greedily where something scores them.

    Args:
        policy: the role that answers.
        rewards: the roles that score.
    """
    data = job.spec.data
    if data.evaluation is not None:
        held_out = data.evaluation
        return Evaluation(
            policy,
            rewards,
            held_out.samples_per_prompt,
            held_out.temperature,
            held_out.pass_at_k,
            held_out.pass_score,
        )
    is_scored = data.train.builtin is not None and bool(rewards)
    return Evaluation(policy, rewards) if is_scored else None


def build_warm_start(job: RLHFJob, policy: str) -> Supervised | None:
    """Supervised training before reinforcement learning; None where the job has none.

    Args:
        policy: the role that is trained.
    """
    return Supervised(policy) if job.spec.schedule.warm_start is not None else None


def resolve_precision(precision: Precision, device: Device) -> Precision:
    """float32 or bfloat16: what `auto` means on a device."""
    if precision is not Precision.AUTO:
        return precision
    return Precision.BFLOAT16 if device is Device.GPU else Precision.FLOAT32
