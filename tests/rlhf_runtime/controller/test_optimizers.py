import pytest

from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import LearningRateDecay
from rlhf_flow import Algorithm, BatchValue, CrossEntropy, Flow, LanguageModel, Roles
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.trace.tracing import trace
from rlhf_runtime.controller.optimizers import training_settings, warm_start_settings
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings

from .jobs import make_job

TRAINING = {
    "learningRate": 3e-4,
    "learningRateDecay": "Cosine",
    "warmupSteps": 7,
    "adamBeta1": 0.8,
    "adamBeta2": 0.97,
    "adamEpsilon": 1e-6,
    "weightDecay": 0.02,
    "gradientClip": 0.5,
}
ACTOR = {"source": {"builtin": "TinyLlama"}, "training": TRAINING}
CRITIC = {"source": {"sameAs": "actor"}, "training": {"learningRate": 1e-3}}


def settings_of(job: RLHFJob, role: str) -> OptimizerSettings:
    return training_settings(job.spec, role, trace_job(job)[GraphName.STEP])


def test_every_setting_of_a_roles_optimizer_comes_from_its_model() -> None:
    job = make_job(models={"actor": ACTOR})
    assert settings_of(job, "actor") == OptimizerSettings(
        learning_rate=3e-4,
        beta1=0.8,
        beta2=0.97,
        epsilon=1e-6,
        weight_decay=0.02,
        gradient_clip=0.5,
        decay=LearningRateDecay.COSINE,
        warmup_updates=7,
        total_updates=10,
    )


def test_updates_are_counted_over_steps_mini_batches_and_epochs() -> None:
    schedule = {"steps": 10, "promptsPerStep": 16, "miniBatchPrompts": 6}
    job = make_job(schedule=schedule, algorithm={"type": "GRPO", "grpo": {"epochsPerBatch": 2}})
    # 16 prompts in mini-batches of 6, 6 and 4.
    assert settings_of(job, "actor").total_updates == 10 * 3 * 2


@pytest.mark.parametrize(("warmup", "actor", "critic"), [(0, 10, 10), (4, 6, 10)])
def test_steps_of_the_critics_warm_up_are_not_updates_of_the_actor(
    warmup: int, actor: int, critic: int
) -> None:
    job = make_job(
        algorithm={"type": "PPO", "ppo": {"criticWarmupSteps": warmup}},
        models={"actor": ACTOR, "critic": CRITIC},
    )
    assert settings_of(job, "actor").total_updates == actor
    settings = settings_of(job, "critic")
    assert settings.total_updates == critic
    assert settings.learning_rate == 1e-3


class Now(Algorithm):
    """Trains on answers in each step, and in every fifth one more time."""

    def roles(self) -> Roles:
        return {"actor": LanguageModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        flow.actor.train(flow.actor.generate(prompts), CrossEntropy())
        flow.every(5, lambda: flow.actor.train(flow.actor.generate(prompts), CrossEntropy()))


def test_a_call_that_seldom_runs_and_a_batch_that_is_never_cut_count_as_they_run() -> None:
    schedule = {"steps": 10, "promptsPerStep": 16, "miniBatchPrompts": 6}
    spec = make_job(schedule=schedule).spec
    assert training_settings(spec, "actor", trace(Now())).total_updates == 10 + 2


def test_the_warm_start_has_a_rate_and_decays_of_its_own() -> None:
    warm_start = {"maxSteps": 33, "learningRate": 2e-3, "adamBeta2": 0.9, "weightDecay": 0.3}
    schedule = {"steps": 10, "promptsPerStep": 16, "warmStart": warm_start}
    spec = make_job(models={"actor": ACTOR}, schedule=schedule).spec
    assert warm_start_settings(spec, "actor") == OptimizerSettings(
        learning_rate=2e-3,
        beta1=0.8,
        beta2=0.9,
        epsilon=1e-6,
        weight_decay=0.3,
        gradient_clip=0.5,
        decay=LearningRateDecay.NONE,
        warmup_updates=0,
        total_updates=33,
    )
