"""The life of a job on one incarnation of workers.

build -> warm start or checkpoint -> [ step -> (evaluate) -> (save) ] x steps -> model
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.checkpoint import EXACT_MATCH, HELD_OUT_LENGTH, HELD_OUT_REWARD
from rlhf_api.spec.cross_field import EXACT_MATCH_VERIFIER
from rlhf_api.spec.job import RLHFJob, RLHFJobSpec
from rlhf_api.spec.models import Precision
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.job_graphs import trace_job
from rlhf_flow.registry import build_algorithm, build_evaluation, build_warm_start
from rlhf_runtime.checkpoint.store import Checkpoint
from rlhf_runtime.controller.divergence import Divergence
from rlhf_runtime.controller.optimizers import training_settings, warm_start_settings
from rlhf_runtime.controller.passes import (
    Behind,
    PassAt,
    PassKind,
    Saving,
    keep_ahead,
    training_passes,
    until_stopped,
)
from rlhf_runtime.controller.saves import Saves
from rlhf_runtime.controller.site import Site
from rlhf_runtime.controller.steps import Pass, Stepper
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.workers import Workers, WorkerSettings
from rlhf_runtime.errors import model_not_saved
from rlhf_runtime.models.files import copy_tokenizer
from rlhf_runtime.telemetry.journal import Journal
from rlhf_runtime.telemetry.records import EvaluationRecord, StepRecord, WarmStartRecord

PASSES_AHEAD = 1
"""Passes that are sent before the one that runs is over: workers never wait for the driver."""


@dataclass(frozen=True)
class Sent:
    """A pass that workers have been sent."""

    pass_at: PassAt
    handle: Any
    """What its end is waited for with."""


class JobRun:
    """Runs one job over one incarnation of workers, from its start or from a checkpoint."""

    def __init__(
        self,
        job: RLHFJob,
        plan: Plan,
        settings: WorkerSettings,
        journal: Journal,
        saves: Saves,
        stop: StopRequest,
        site: Site,
    ) -> None:
        self._spec = job.spec
        self._plan = plan
        self._journal = journal
        self._saves = saves
        self._stop = stop
        self._algorithm = build_algorithm(job)
        self._graph = trace_job(job)[GraphName.STEP]
        self._evaluation = build_evaluation(job)
        self._warm_start = build_warm_start(job)
        self._workers = Workers(job, plan, settings, site)
        self._stepper = Stepper(self._workers)
        self._has_generated = False
        self._step = 0
        self._divergence = Divergence(job.spec.failure_policy.max_skipped_steps)

    def run(self, model_folder: Path, checkpoint: Checkpoint | None) -> bool:
        """Everything; the final model is written to `model_folder`.

        Returns whether it came to its end; False: it was stopped before, with its state saved.
        """
        counts = self._workers.build(self._journal.started)
        self._journal.notice_data(counts)
        self._stop.obey()
        self._saves.claim()
        if checkpoint is None and self._warm_start is not None:
            self._run_warm_start(self._warm_start)
        self._begin_training(fresh=checkpoint is None)
        if checkpoint is not None:
            self._workers.on_ranks("restore", checkpoint.address)
        self._step = 0 if checkpoint is None else checkpoint.record.step
        try:
            self._train(checkpoint)
        finally:
            self._stop.worth_waiting = False
        if self._step < self._spec.schedule.steps:
            return False
        self._save_model(model_folder)
        return True

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
            self._stop.obey()
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

    def _begin_training(self, fresh: bool) -> None:
        """Every trained role gets an optimizer; in a fresh start, roles that share the actor's
        source get its weights."""
        for planned in self._plan.roles:
            if planned.origin is None:
                continue
            takes_actors = self._warm_start is not None and planned.origin == "actor"
            if fresh and takes_actors and planned.role != "actor":
                self._workers.on_ranks("copy_weights", "actor", planned.role)
            if planned.kind.is_trained:
                settings = training_settings(self._spec, planned.role, self._graph)
                self._workers.on_ranks("use_optimizer", planned.role, settings)

    def _train(self, checkpoint: Checkpoint | None) -> None:
        """All that is left of training, one pass sent ahead of the one that runs."""
        record = None if checkpoint is None else checkpoint.record
        behind = None if record is None else Behind(record.step, bool(record.metrics))
        saving = Saving(self._spec.checkpoint.every_steps, self._warm_start is not None)
        passes = training_passes(self._spec.schedule, saving, self._evaluation is not None, behind)
        wanted = until_stopped(passes, lambda: self._stop.wanted)
        keep_ahead(map(self._send, wanted), self._finish, PASSES_AHEAD)

    def _send(self, wanted: PassAt) -> Sent:
        step = wanted.step
        match wanted.kind:
            case PassKind.TRAIN:
                return Sent(wanted, self._stepper.train(self._algorithm, step))
            case PassKind.EVALUATE:
                assert self._evaluation is not None
                return Sent(wanted, self._stepper.evaluate(self._evaluation, step))
            case PassKind.SAVE:
                return Sent(wanted, self._saves.begin(self._workers.ranks, step))
            case PassKind.COMMIT:
                return Sent(wanted, self._saves.finish(self._workers.ranks, step))

    def _finish(self, sent: Sent) -> None:
        step = sent.pass_at.step
        match sent.pass_at.kind:
            case PassKind.TRAIN:
                done = self._wait(sent)
                self._journal.step(step_record(step, done))
                self._divergence.note(step, done.metrics)
                self._step = step
                self._stop.worth_waiting = True
            case PassKind.EVALUATE:
                metrics = evaluation_metrics(self._spec, self._wait(sent))
                self._saves.measured(step, metrics)
                self._journal.evaluation(EvaluationRecord(step, metrics))
            case PassKind.SAVE:
                self._saves.wait(sent.handle, self._workers.look)
            case PassKind.COMMIT:
                self._saves.commit(sent.handle, self._workers.look)

    def _wait(self, sent: Sent) -> Pass:
        done = self._stepper.wait(sent.handle)
        self._note_first_tokens(done)
        for notice in done.notices:
            self._journal.notice_once(notice)
        return done

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

    def _save_model(self, folder: Path) -> None:
        actor = self._plan.role("actor")
        assert actor is not None and actor.precision is not None
        dtype = "bfloat16" if actor.precision is Precision.BFLOAT16 else "float32"
        aside = folder.with_name(folder.name + ".new")
        shutil.rmtree(aside, ignore_errors=True)
        self._workers.on_ranks("save", "actor", aside, dtype)
        try:
            copy_tokenizer(self._workers.folders["actor"], aside)
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        except OSError as error:
            raise model_not_saved(folder, error) from error


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
        HELD_OUT_REWARD: done.metrics["reward/mean"],
        HELD_OUT_LENGTH: done.metrics["response/length_mean"],
    }
    for reward in spec.rewards:
        name = f"{reward.role}/{reward.name}"  # missing where the verifier scored nothing
        if reward.function.entrypoint == EXACT_MATCH_VERIFIER and name in done.metrics:
            metrics[EXACT_MATCH] = done.metrics[name]
    return metrics
