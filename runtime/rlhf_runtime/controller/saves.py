"""The driver's part in checkpoints: lets ranks write, commits, keeps the last and the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, nan
from types import MappingProxyType
from typing import Any

from rlhf_api.plan import Plan
from rlhf_api.spec.checkpoint import CheckpointSpec, KeepBest, OnCheckpointError
from rlhf_runtime.checkpoint.record import CheckpointRecord, SavedFile, best_first
from rlhf_runtime.checkpoint.store import (
    Checkpoint,
    CheckpointDamaged,
    CheckpointStore,
    damaged_text,
)
from rlhf_runtime.controller.results import wait_for, wait_for_end
from rlhf_runtime.errors import CheckpointFailed, RuntimeFailure, StorageFailed
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.telemetry.journal import Journal


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is being written."""

    step: int
    world_size: int
    files: Sequence[Any]
    """References to the files that each rank wrote."""


@dataclass
class CheckpointManager:
    """Checkpoints of one job, over all of its incarnations."""

    store: CheckpointStore
    settings: CheckpointSpec
    spec: Mapping[str, Any]
    """The job's spec in force, with defaults, by wire names."""
    journal: Journal
    plan: Plan | None = None
    """Source of the records' policy."""
    evaluations: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    """Step and metrics of every evaluation of the training so far; of the metrics only those that
    checkpoint.keepBest can name."""
    # The last evaluation: its step and metrics.
    _evaluation: tuple[int, Mapping[str, float]] = (0, MappingProxyType({}))
    newest_step: int = -1
    """Step of the last complete checkpoint; -1: none."""
    _damaged: set[int] = field(default_factory=set)
    _has_claimed: bool = False
    # Steps whose checkpoints are kept until further ones are written.
    _kept: set[int] = field(default_factory=set)

    def claim(self) -> None:
        """Become the only run that saves at this address. Only the first call has an effect."""
        if not self._has_claimed:
            self.store.claim()
            self._has_claimed = True

    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint; report newer ones that are incomplete.

        Raises:
            StorageFailed: they cannot be read now.
        """
        checkpoint = self.store.newest(self._report_damaged)
        # Evaluations after the checkpoint are repeated.
        self.evaluations = [] if checkpoint is None else [*checkpoint.record.evaluations]
        if checkpoint is not None:
            self.newest_step = checkpoint.record.step
            self._kept = {self.newest_step}
        return checkpoint

    def better_than(self, step: int) -> Checkpoint | None:
        """Return the checkpoint with the largest metric of checkpoint.keepBest; report damaged
        ones.

        Args:
            step: of the current weights.

        Returns:
            None: no intact checkpoint has a larger metric than the evaluation after this step.

        Raises:
            StorageFailed: checkpoints cannot be read now.
        """
        metric = self.settings.keep_best.metric
        if metric is None:
            return None
        current = dict(self.evaluations).get(step, {}).get(metric, nan)
        for record in best_first(self.store.records(), metric):
            # The comparison is false if this step was not evaluated.
            if record.step == step or record.metrics[metric] <= current:
                return None
            try:
                return self.store.read(record.step)
            except CheckpointDamaged as error:
                self._report_damaged(record.step, error)
        return None

    def _report_damaged(self, step: int, error: CheckpointDamaged) -> None:
        self._damaged.add(step)
        self.journal.notice_once(damaged_text(step, error))

    def record_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record evaluation metrics after a step, for its checkpoint and all later ones."""
        self._evaluation = (step, metrics)
        # Not only the metric of the manifest: a resumed job may name another one.
        compared = {kind.metric for kind in KeepBest}
        self.evaluations.append((step, {k: v for k, v in metrics.items() if k in compared}))

    def begin(self, ranks: Sequence[Any], step: int) -> list[Any]:
        """Let all ranks copy their state and begin to write it."""
        try:
            address = self.store.begin(step)
            self._report_deleted()
        except StorageFailed as error:
            self._handle_failure(step, error)
            return []
        return [rank.begin_save.remote(address, step) for rank in ranks]

    def _report_deleted(self) -> None:
        """Report checkpoints that somebody has deleted. Later ones are written as usual."""
        deleted = self._kept - {*self.store.steps()}
        if not deleted:
            return
        self._kept -= deleted
        self.newest_step = max(self._kept, default=-1)
        steps = ", ".join(map(str, sorted(deleted)))
        begins = f"from step {self.newest_step}" if self._kept else "at the job's start"
        self.journal.notice(
            f"checkpoints in {self.store.address} were deleted while the job ran: got none of step "
            f"{steps} any more; until the next one is written, a restart begins {begins}"
        )
        if not self._kept:
            # The claim was deleted, too.
            self.store.claim()

    def wait(self, copying: Sequence[Any], poll: Hook = noop) -> None:
        """Wait until the state is copied; `poll` is called every few seconds."""
        wait_for(copying, poll)

    def finish(self, ranks: Sequence[Any], step: int) -> PendingCheckpoint:
        """Let all ranks finish writing."""
        return PendingCheckpoint(
            step, len(ranks), [rank.finish_save.remote(step) for rank in ranks]
        )

    def commit(self, finishing: PendingCheckpoint, poll: Hook = noop) -> None:
        """Wait until all files are written, then make them the checkpoint of their step.

        `poll` is called every few seconds.

        Raises:
            CheckpointFailed: it could not be written, and the manifest says to fail then.
        """
        step = finishing.step
        try:
            written: list[dict[str, SavedFile]] = wait_for(finishing.files, poll)
        except CheckpointFailed as error:
            # Ranks of other pools may still write.
            wait_for_end(finishing.files, poll)
            self._handle_failure(step, error)
            return
        files = {name: file for part in written for name, file in part.items()}
        if not files:
            # It was never begun, which was reported.
            return
        evaluated_step, metrics = self._evaluation
        record = CheckpointRecord(
            step=step,
            world_size=finishing.world_size,
            spec=self.spec,
            metrics=dict(metrics) if evaluated_step == step else {},
            evaluations=tuple(one for one in self.evaluations if one[0] <= step),
            files=files,
            policy="" if self.plan is None else self.plan.policy,
        )
        try:
            checkpoint = self.store.commit(record)
        except StorageFailed as error:
            self._handle_failure(step, error)
            return
        self.newest_step = step
        self._damaged.discard(step)
        self._kept.add(step)
        self.journal.saved(step, checkpoint.address)
        self._prune(step)

    def _prune(self, step: int) -> None:
        """Delete the checkpoints that are not kept."""
        try:
            records = {saved: self.store.record(saved) for saved in self.store.steps()}
            complete = [
                record
                for saved, record in records.items()
                # A checkpoint after `step` is damaged, else the job had resumed from it.
                if record and saved <= step and saved not in self._damaged
            ]
            kept = steps_to_keep(complete, self.settings.keep_last, self.settings.keep_best.metric)
            self._kept = kept & records.keys()
            for saved, record in records.items():
                # Files of the next step may be on their way already.
                is_being_written = record is None and saved > step
                if saved not in kept and not is_being_written:
                    self.store.remove(saved)
            self.store.remove_unfinished(step)
        except StorageFailed as error:
            self.journal.notice_once(
                f"old checkpoints could not be deleted: got {error}; they stay there"
            )

    def _handle_failure(self, step: int, error: RuntimeFailure) -> None:
        text = (
            f"the checkpoint of step {step} could not be written: {error}; older "
            "checkpoints are untouched"
        )
        # Leftovers are reported as unfinished when the job resumes.
        with suppress(StorageFailed):
            self.store.abandon(step)
        if self.settings.on_error is OnCheckpointError.FAIL:
            raise CheckpointFailed(text) from error
        self.journal.notice(f"{text}; training goes on (checkpoint.onError)")


def steps_to_keep(records: list[CheckpointRecord], keep_last: int, best_by: str | None) -> set[int]:
    """Return the steps whose checkpoints are kept: the newest, and the one with the largest metric.

    Args:
        records: of all checkpoints.
        keep_last: number of the newest.
        best_by: an evaluation metric; None: no best one is kept.
    """
    newest = sorted((record.step for record in records), reverse=True)[:keep_last]
    best = [] if best_by is None else best_first(records, best_by)[:1]
    return {*newest, *(record.step for record in best)}


def best_model_text(
    metric: str, step: int, evaluations: Sequence[tuple[int, Mapping[str, float]]]
) -> str:
    """Say which step's weights become the model, and if a better step has no checkpoint.

    Args:
        metric: of checkpoint.keepBest.
        step: of the weights.
        evaluations: step and metrics of all evaluations.
    """
    values = {at: metrics[metric] for at, metrics in evaluations if metric in metrics}
    own = f", with {metric} {values[step]:.5g}" if step in values else ""
    text = f"the model is that of step {step}{own} (checkpoint.finalModel)"
    largest = max(values, key=lambda at: values[at], default=step)
    if values.get(largest, -inf) > values.get(step, -inf):
        text += (
            f"; step {largest} had {values[largest]:.5g}, and has no checkpoint that can be used"
        )
    return text
