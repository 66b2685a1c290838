"""The life of a job on its workers: warm start, training steps, evaluations, the final model.

build -> (warm start) -> evaluate -> [ step -> (evaluate) ] x steps -> save
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlhf_api.crossfield import EXACT_MATCH_VERIFIER
from rlhf_api.job import RLHFJob, RLHFJobSpec
from rlhf_api.models import Precision
from rlhf_api.plan import GraphName, Plan
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.registry import build_algorithm, build_evaluation, build_warm_start
from rlhf_runtime.controller.optimizers import training_settings, warm_start_settings
from rlhf_runtime.controller.passes import PassAt, keep_ahead, training_passes
from rlhf_runtime.controller.steps import Pass, Stepper, Submitted
from rlhf_runtime.controller.workers import Workers, WorkerSettings
from rlhf_runtime.models.files import copy_tokenizer
from rlhf_runtime.telemetry.journal import Journal
from rlhf_runtime.telemetry.records import EvaluationRecord, StepRecord, WarmStartRecord

PASSES_AHEAD = 1
"""Passes that are sent before the one that runs is over: workers never wait for the driver."""
EXACT_MATCH = "evaluation/exact_match"


class JobRun:
    """Runs one job from start to end over one incarnation of workers."""

    def __init__(
        self, job: RLHFJob, plan: Plan, settings: WorkerSettings, journal: Journal
    ) -> None:
        self._job = job
        self._spec = job.spec
        self._plan = plan
        self._journal = journal
        self._algorithm = build_algorithm(job)
        self._evaluation = build_evaluation(job)
        self._warm_start = build_warm_start(job)
        self._workers = Workers(job, plan, self._algorithm.losses(), settings)
        self._stepper = Stepper(self._workers)
        self._has_generated = False

    def run(self, model_folder: Path) -> None:
        """Everything; the final model is written to `model_folder`."""
        counts = self._workers.build(self._journal.started)
        self._journal.notice_data(counts)
        if self._warm_start is not None:
            self._run_warm_start(self._warm_start)
        self._begin_training()
        self._train()
        self._save(model_folder)

    def close(self) -> None:
        """Let the workers end in order."""
        self._workers.close()

    def kill(self) -> None:
        """End the workers at once, whatever they are doing."""
        self._workers.kill()

    def _run_warm_start(self, algorithm: Algorithm) -> None:
        """Train the actor on answers until it is good enough or its steps are over."""
        settings = self._spec.schedule.warm_start
        assert settings is not None
        self._workers.on_ranks("use_optimizer", "actor", warm_start_settings(self._spec))
        for step in range(1, settings.max_steps + 1):
            done = self._stepper.wait(self._stepper.warm_start(algorithm, step))
            metrics = dict(done.metrics)
            last = step == settings.max_steps
            if settings.stop_at_exact_match is not None and (
                last or step % settings.evaluate_every_steps == 0
            ):
                metrics |= self._held_out()
            self._journal.warm_start(WarmStartRecord(step, metrics))
            goal = settings.stop_at_exact_match
            if goal is not None and metrics.get(EXACT_MATCH, -1.0) >= goal:
                return

    def _begin_training(self) -> None:
        """Roles that share the actor's source take its weights; every trained role an optimizer."""
        for planned in self._plan.roles:
            if planned.origin is None:
                continue
            if self._warm_start is not None and planned.origin == "actor" != planned.role:
                self._workers.on_ranks("copy_weights", "actor", planned.role)
            if planned.kind.is_trained:
                loss = self._algorithm.losses()[planned.role]
                settings = training_settings(self._spec, planned.role, loss)
                self._workers.on_ranks("use_optimizer", planned.role, settings)

    def _train(self) -> None:
        """All training steps and evaluations, one pass sent ahead of the one that runs."""
        passes = training_passes(self._spec.schedule, self._evaluation is not None)
        keep_ahead(map(self._send, passes), self._finish, PASSES_AHEAD)

    def _send(self, wanted: PassAt) -> tuple[PassAt, Submitted]:
        if wanted.graph is GraphName.STEP:
            return wanted, self._stepper.train(self._algorithm, wanted.step)
        assert self._evaluation is not None
        return wanted, self._stepper.evaluate(self._evaluation, wanted.step)

    def _finish(self, sent: tuple[PassAt, Submitted]) -> None:
        wanted, submitted = sent
        done = self._stepper.wait(submitted)
        self._note_first_tokens(done)
        if wanted.graph is GraphName.STEP:
            self._journal.step(step_record(wanted.step, done))
        else:
            metrics = evaluation_metrics(self._spec, done)
            self._journal.evaluation(EvaluationRecord(wanted.step, metrics))
        for notice in done.notices:
            self._journal.notice_once(notice)

    def _held_out(self) -> Mapping[str, float]:
        """Held-out metrics now, before reinforcement learning."""
        assert self._evaluation is not None
        done = self._stepper.wait(self._stepper.evaluate(self._evaluation, 0))
        self._note_first_tokens(done)
        return evaluation_metrics(self._spec, done)

    def _note_first_tokens(self, done: Pass) -> None:
        """The first generation pays for what engines put off until then: a part of the start-up."""
        if not self._has_generated and "generate" in done.phases:
            self._has_generated = True
            self._journal.started("first generation", done.phases["generate"])

    def _save(self, folder: Path) -> None:
        actor = self._plan.role("actor")
        assert actor is not None and actor.precision is not None
        dtype = "bfloat16" if actor.precision is Precision.BFLOAT16 else "float32"
        self._workers.on_ranks("save", "actor", folder, dtype)
        copy_tokenizer(self._workers.folders["actor"], folder)


def step_record(step: int, done: Pass) -> StepRecord:
    """What a training step came to, for the journal."""
    rates = {"throughput/tokens_per_second": done.tokens / done.seconds, "time/step": done.seconds}
    times = {f"time/{phase}": seconds for phase, seconds in done.phases.items()}
    return StepRecord(
        step=step,
        metrics={**done.metrics, **rates, **times},
        phases=done.phases,
        seconds=done.seconds,
        tokens=done.tokens,
        spans=done.spans,
        memory=done.memory,
    )


def evaluation_metrics(spec: RLHFJobSpec, done: Pass) -> dict[str, float]:
    """Metrics of held-out prompts; exact match if a verifier of the job measures it."""
    metrics = {
        "evaluation/reward_mean": done.metrics["reward/mean"],
        "evaluation/length_mean": done.metrics["response/length_mean"],
    }
    for reward in spec.rewards:
        name = f"reward/{reward.name}"  # missing where the verifier scored nothing
        if reward.function.entrypoint == EXACT_MATCH_VERIFIER and name in done.metrics:
            metrics[EXACT_MATCH] = done.metrics[name]
    return metrics
