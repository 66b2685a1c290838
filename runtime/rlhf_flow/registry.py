"""From a job to its algorithms: the one list of what `spec.algorithm.type` can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_api import RLHFJob
from rlhf_api.spec.algorithm import AlgorithmType, CustomSettings, GrpoSettings, PpoSettings
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.algorithms.evaluation import Evaluation
from rlhf_flow.algorithms.grpo import Grpo
from rlhf_flow.algorithms.ppo import Ppo
from rlhf_flow.algorithms.supervised import Supervised
from rlhf_flow.entrypoints import build_custom


def _grpo(job: RLHFJob) -> Algorithm:
    settings = job.spec.algorithm.settings
    assert isinstance(settings, GrpoSettings)
    return Grpo(settings, job.spec.schedule.updates_per_epoch * settings.epochs_per_batch)


def _ppo(job: RLHFJob) -> Algorithm:
    settings = job.spec.algorithm.settings
    assert isinstance(settings, PpoSettings)
    return Ppo(settings, job.spec.schedule.updates_per_epoch * settings.epochs_per_batch)


def _custom(job: RLHFJob) -> Algorithm:
    settings = job.spec.algorithm.settings
    assert isinstance(settings, CustomSettings)
    return build_custom(settings.entrypoint, settings.parameters)


ALGORITHMS: Mapping[AlgorithmType, Callable[[RLHFJob], Algorithm]] = {
    AlgorithmType.GRPO: _grpo,
    AlgorithmType.PPO: _ppo,
    AlgorithmType.CUSTOM: _custom,
}


def build_algorithm(job: RLHFJob) -> Algorithm:
    """The algorithm that a job runs.

    Raises:
        InvalidAlgorithm: a custom algorithm that cannot be imported or built.
    """
    return ALGORITHMS[job.spec.algorithm.type](job)


def build_evaluation(job: RLHFJob) -> Evaluation | None:
    """How held-out prompts are answered; None where the job has none.

    A builtin task brings its own held-out prompts, answered greedily.
    """
    data = job.spec.data
    if data.evaluation is not None:
        return Evaluation(data.evaluation.samples_per_prompt, data.evaluation.temperature)
    return Evaluation() if data.train.builtin is not None else None


def build_warm_start(job: RLHFJob) -> Supervised | None:
    """Supervised training before reinforcement learning; None where the job has none."""
    return Supervised() if job.spec.schedule.warm_start is not None else None
