"""The life of a job on one incarnation of workers.

build -> (first token -> warm start) or checkpoint -> [ step -> (evaluate) -> (save) ] x steps
      -> model
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.checkpoint import (
    EXACT_MATCH,
    FinalModel,
    ModelFormat,
)
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Precision
from rlhf_flow.jobs.job_graphs import reward_roles, trace_algorithms
from rlhf_flow.step.algorithm import Algorithm
from rlhf_runtime.checkpoint.store import Checkpoint
from rlhf_runtime.controller.divergence import Divergence
from rlhf_runtime.controller.early_stop import EarlyStop, early_stop
from rlhf_runtime.controller.equal_rewards import EqualRewards
from rlhf_runtime.controller.optimizers import training_settings, warm_start_settings
from rlhf_runtime.controller.pass_records import (
    evaluation_metrics,
    headline_metric,
    step_record,
)
from rlhf_runtime.controller.saves import CheckpointManager, best_model_text
from rlhf_runtime.controller.steps import PassResult, PassRunner
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.training_passes import (
    PassKind,
    ResumePoint,
    SaveSchedule,
    ScheduledPass,
    keep_ahead,
    training_passes,
    until_stopped,
)
from rlhf_runtime.controller.unscored_steps import UnscoredSteps, unscored_evaluation
from rlhf_runtime.controller.untrained_steps import UntrainedSteps
from rlhf_runtime.controller.worker_sites import Site
from rlhf_runtime.controller.workers import Workers, WorkerSettings
from rlhf_runtime.errors import ModelNotSaved, model_not_saved
from rlhf_runtime.hooks import UntilWritten, write_once
from rlhf_runtime.journal.folder import Position
from rlhf_runtime.models.folder import copy_tokenizer
from rlhf_runtime.models.number_format import saved_format
from rlhf_runtime.telemetry.records import (
    EvaluationRecord,
    WarmStartRecord,
)
from rlhf_runtime.telemetry.run_recorder import RunRecorder


@dataclass(frozen=True)
class InFlightPass:
    """A pass that was sent to the workers."""

    scheduled: ScheduledPass
    handle: Any
    """Submitted pass or references, to wait for its end."""


class JobRun:
    """Runs one job over one incarnation of workers, from its start or from a checkpoint."""

    def __init__(
        self,
        job: RLHFJob,
        plan: Plan,
        settings: WorkerSettings,
        recorder: RunRecorder,
        checkpoints: CheckpointManager,
        stop: StopRequest,
        site: Site,
        until_written: UntilWritten = write_once,
    ) -> None:
        """
        Args:
            until_written: calls a write, again and again while the disk is full.
        """
        self._until_written = until_written
        self._spec = job.spec
        self._plan = plan
        self._recorder = recorder
        self._checkpoints = checkpoints
        self._stop = stop
        traced = trace_algorithms(job, plan.device)
        graphs = {name: traced_algorithm.graph for name, traced_algorithm in traced.items()}
        self._graph = graphs[GraphName.STEP]
        self._algorithms = {
            name: traced_algorithm.algorithm for name, traced_algorithm in traced.items()
        }
        self._rewards = {name: reward_roles(graph) for name, graph in graphs.items()}
        self._workers = Workers(job, plan, settings, site)
        self._stepper = PassRunner(self._workers, graphs)
        self._has_generated = False
        self._step = 0
        self._early_stop: EarlyStop | None = None
        self._divergence = Divergence(job.spec.failure_policy.max_skipped_steps)
        self._unscored_steps = UnscoredSteps(job.spec.failure_policy.max_unscored_steps)
        self._untrained_steps = UntrainedSteps()
        self._equal_rewards = EqualRewards(headline_metric(self._rewards[GraphName.STEP]))

    def run(self, model_folder: Path, checkpoint: Checkpoint | None) -> bool:
        """Run the job and write the final model to `model_folder`.

        Returns:
            True if the job is complete; False if it was stopped before, with its state saved.
        """
        self._workers.build(self._recorder.started)
        self._recorder.notice_data(self._workers.counts)
        self._stop.raise_if_requested()
        self._recorder.require_folder()
        self._until_written(self._checkpoints.claim)
        if checkpoint is None and GraphName.WARM_START in self._algorithms:
            self._generate_first_token()
            self._run_warm_start(self._algorithms[GraphName.WARM_START])
        self._begin_training(fresh=checkpoint is None)
        if checkpoint is not None:
            self._workers.call_ranks("restore", checkpoint.address)
        self._step = 0 if checkpoint is None else checkpoint.record.step
        if self._step >= self._spec.schedule.steps:
            self._recorder.notice(
                f"the checkpoint has {self._step} of {self._spec.schedule.steps} steps behind it: "
                "nothing is left to train"
            )
        try:
            self._train(checkpoint)
            self._retry_checkpoint()
        finally:
            self._stop.has_state_to_save = False
        if self._step < self._spec.schedule.steps and self._early_stop is None:
            return False
        step = self._step
        if self._spec.checkpoint.final_model is FinalModel.BEST:
            step = self._restore_best()
        self._until_written(partial(self._save_results, step, model_folder))
        self._recorder.model_saved(step)
        return True

    def close(self) -> None:
        """Let the workers end in order."""
        self._workers.close()

    def kill(self) -> None:
        """End the workers at once, whatever they are doing."""
        self._workers.kill()

    def _generate_first_token(self) -> None:
        """Generate one token before a warm start spends minutes."""
        if not self._plan.generations:
            return
        begin = time.monotonic()
        # Engines report now if they cannot run the model, and finish their lazy start-up.
        self._workers.call_ranks("generate_first_token")
        self._has_generated = True
        self._recorder.started("first generation", time.monotonic() - begin)

    def _run_warm_start(self, algorithm: Algorithm) -> None:
        """Train the policy on answers until it is good enough or the steps are over."""
        settings = self._spec.schedule.warm_start
        assert settings is not None
        policy = self._plan.policy
        rates = warm_start_settings(self._spec, policy)
        self._workers.call_role(policy, "use_optimizer", policy, rates)
        for step in range(1, settings.max_steps + 1):
            self._stop.raise_if_requested()
            done = self._stepper.wait(self._stepper.warm_start(algorithm, step))
            metrics = dict(done.metrics)
            last = step == settings.max_steps
            if settings.stop_at_exact_match is not None and (
                last or step % settings.evaluate_every_steps == 0
            ):
                metrics |= self._evaluate_warm_start(step)
            self._recorder.warm_start(WarmStartRecord(step, metrics))
            goal = settings.stop_at_exact_match
            if goal is not None and metrics.get(EXACT_MATCH, -1.0) >= goal:
                return

    def _begin_training(self, fresh: bool) -> None:
        """Give every trained role its optimizer. After a warm start, copy the policy's weights to
        roles with the same source."""
        policy = self._plan.policy
        origin = self._spec.origin_role(policy)
        was_trained = fresh and GraphName.WARM_START in self._algorithms
        for planned in self._plan.roles:
            if was_trained and planned.origin == origin and planned.role != policy:
                self._workers.copy_weights(policy, planned.role)
            if planned.is_trained:
                settings = training_settings(self._spec, planned.role, self._graph)
                self._workers.call_role(planned.role, "use_optimizer", planned.role, settings)

    def _train(self, checkpoint: Checkpoint | None) -> None:
        """Run the remaining training; passes are sent ahead."""
        record = None if checkpoint is None else checkpoint.record
        resume_from = None if record is None else ResumePoint(record.step, bool(record.metrics))
        saving = SaveSchedule(
            self._spec.checkpoint.every_steps, GraphName.WARM_START in self._algorithms
        )
        evaluates = GraphName.EVALUATION in self._algorithms
        passes = training_passes(
            self._spec.schedule,
            saving,
            evaluates,
            resume_from,
            self._ends_early,
            self._checkpoints.should_retry,
        )
        scheduled = until_stopped(passes, lambda: self._stop.requested)
        keep_ahead(map(self._send, scheduled), self._finish, self._plan.passes_ahead, self._decides)

    def _decides(self, sent: InFlightPass) -> bool:
        """True if a pass decides about an early stop."""
        is_evaluation = sent.scheduled.kind is PassKind.EVALUATE
        return is_evaluation and self._spec.schedule.early_stop is not None

    def _ends_early(self, step: int) -> bool:
        """True if training ends with an evaluated step. The recorder records the cause."""
        self._early_stop = early_stop(self._spec, step, self._checkpoints.evaluations)
        if self._early_stop is not None:
            self._recorder.stopped_early(str(self._early_stop))
        return self._early_stop is not None

    def _send(self, scheduled: ScheduledPass) -> InFlightPass:
        step = scheduled.step

        self._recorder.require_folder()
        match scheduled.kind:
            case PassKind.TRAIN:
                algorithm = self._algorithms[GraphName.STEP]
                return InFlightPass(scheduled, self._stepper.train(algorithm, step))
            case PassKind.EVALUATE:
                algorithm = self._algorithms[GraphName.EVALUATION]
                return InFlightPass(scheduled, self._stepper.evaluate(algorithm, step))
            case PassKind.SAVE:
                return InFlightPass(scheduled, self._checkpoints.begin(self._workers.ranks, step))
            case PassKind.COMMIT:
                return InFlightPass(scheduled, self._checkpoints.finish(self._workers.ranks, step))

    def _finish(self, sent: InFlightPass) -> None:
        step = sent.scheduled.step
        match sent.scheduled.kind:
            case PassKind.TRAIN:
                done = self._wait(sent)
                self._recorder.lines(step, done.lines)
                self._recorder.samples(done.samples)
                self._recorder.step(step_record(step, done, self._rewards[GraphName.STEP]))
                for notice in (
                    self._divergence.record_step(step, done.metrics),
                    self._unscored_steps.record_step(step, done),
                    self._untrained_steps.record_step(step, done),
                    self._equal_rewards.record_step(step, done.metrics),
                ):
                    if notice:
                        self._recorder.notice(notice)
                self._step = step
                self._stop.has_state_to_save = True
            case PassKind.EVALUATE:
                done = self._wait(sent)
                metrics = self._evaluation_metrics(done, f"step {step}")
                self._recorder.samples(done.samples)
                self._checkpoints.record_evaluation(step, metrics)
                self._recorder.evaluation(EvaluationRecord(step, metrics))
            case PassKind.SAVE:
                self._checkpoints.wait(sent.handle, self._workers.poll)
            case PassKind.COMMIT:
                self._checkpoints.commit(sent.handle, self._workers.poll)

    def _wait(self, sent: InFlightPass) -> PassResult:
        done = self._stepper.wait(sent.handle)
        self._record_first_generation(done)
        self._report_scoring(sent.scheduled.step, done)
        is_evaluation = sent.scheduled.kind is PassKind.EVALUATE
        self._checkpoints.limit_journal(Position(sent.scheduled.step, is_evaluation))
        return done

    def _report_scoring(self, step: int, done: PassResult) -> None:
        for notice in done.notices:
            self._recorder.notice_once(notice)
        for reward, failure in done.unscored:
            self._recorder.unscored(step, reward, failure)

    def _evaluate_warm_start(self, step: int) -> Mapping[str, float]:
        """Return evaluation metrics after a step of the warm start."""
        algorithm = self._algorithms[GraphName.EVALUATION]
        done = self._stepper.wait(self._stepper.evaluate_warm_start(algorithm, step))
        self._record_first_generation(done)
        self._report_scoring(0, done)
        self._checkpoints.limit_journal(Position(0, is_evaluation=True))
        return self._evaluation_metrics(done, f"step {step} of the warm start")

    def _evaluation_metrics(self, done: PassResult, steps: str) -> dict[str, float]:
        if done.is_unscored:
            self._recorder.notice(unscored_evaluation(steps))
        roles = self._rewards[GraphName.EVALUATION]
        sources = self._spec.data.evaluation_names
        return evaluation_metrics(done, roles, self._spec.rewards, self._workers.measured, sources)

    def _record_first_generation(self, done: PassResult) -> None:
        """Record the first generation as part of the start-up."""
        if not self._has_generated and "generate" in done.phases:
            self._has_generated = True
            self._recorder.started("first generation", done.phases["generate"])

    def _restore_best(self) -> int:
        """Give the workers the weights of the best checkpoint; returns their step."""
        metric = self._spec.checkpoint.keep_best.metric
        assert metric is not None, "a rule refuses the best model by no metric"
        best = self._checkpoints.better_than(self._step)
        if best is not None:
            self._workers.call_ranks("restore", best.address)
        step = self._step if best is None else best.record.step
        self._recorder.notice(best_model_text(metric, step, self._checkpoints.evaluations))
        return step

    def _retry_checkpoint(self) -> None:
        """Write the checkpoint of the last step if it found no space and may find some now."""
        ranks, poll = self._workers.ranks, self._workers.poll
        while self._checkpoints.should_retry():
            self._checkpoints.wait(self._checkpoints.begin(ranks, self._step), poll)
            self._checkpoints.commit(self._checkpoints.finish(ranks, self._step), poll)

    def _save_results(self, step: int, folder: Path) -> None:
        """Write the model of a step, and before it the last checkpoint if that is missing."""
        # Workers with the best model do not have the last state any more.
        if step == self._step:
            self._retry_checkpoint()
        while True:
            try:
                return self._save_model(folder)
            except ModelNotSaved as error:
                if not (error.is_disk_full and self._checkpoints.make_space_for_model()):
                    raise

    def _save_model(self, folder: Path) -> None:
        policy = self._plan.role(self._plan.policy)
        assert policy is not None and policy.precision is not None
        self._recorder.require_folder()
        source = self._workers.folders[policy.role]
        requested = self._spec.checkpoint.model_format
        model_format = saved_format(requested, source)
        is_rounded = (policy.precision, model_format) == (Precision.FLOAT32, ModelFormat.BFLOAT16)
        if is_rounded and requested is ModelFormat.SOURCE:
            self._recorder.notice(
                "the model is saved in bfloat16, as its source, and was trained in float32; "
                "checkpoint.modelFormat: float32 keeps all digits"
            )
        # Written to a second folder, then renamed: a failed write leaves the old model.
        new_folder = folder.with_name(folder.name + ".new")
        shutil.rmtree(new_folder, ignore_errors=True)
        try:
            new_folder.mkdir()
            words = (policy.role, new_folder, model_format.value)
            self._workers.call_role(policy.role, "save", *words)
            copy_tokenizer(source, new_folder)
            shutil.rmtree(folder, ignore_errors=True)
            new_folder.rename(folder)
        except OSError as error:
            shutil.rmtree(new_folder, ignore_errors=True)
            raise model_not_saved(folder, error) from error
        except ModelNotSaved:
            # Others need the space.
            shutil.rmtree(new_folder, ignore_errors=True)
            raise
