"""The driver's part in checkpoints: lets ranks write, commits, keeps the last and the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, nan
from types import MappingProxyType
from typing import Any

from rlhf_api.plan import Plan
from rlhf_api.report import SavingProblem
from rlhf_api.spec.checkpoint import CheckpointSpec, FinalModel, KeepBest, OnCheckpointError
from rlhf_runtime.checkpoint.record import CheckpointRecord, SavedFile, best_first
from rlhf_runtime.checkpoint.store import (
    Checkpoint,
    CheckpointDamaged,
    CheckpointStore,
    damaged_text,
)
from rlhf_runtime.controller.results import wait_for, wait_for_end
from rlhf_runtime.controller.retention import deletion_order, steps_to_keep
from rlhf_runtime.controller.space_wait import grew
from rlhf_runtime.errors import CheckpointFailed, NoSpace, RuntimeFailure, StorageFailed
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.journal.folder import JournalFolder, Position
from rlhf_runtime.telemetry.run_recorder import RunRecorder

# Growth of a checkpoint from one to the next: its record, and state of custom code.
SPARE_BYTES = 1 << 20


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
    recorder: RunRecorder
    plan: Plan | None = None
    """Source of the records' policy."""
    journal: JournalFolder | None = None
    """Answers that checkpoints need. None: there are none."""
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
    # Size of the last complete checkpoint; 0: there is none.
    _num_bytes: int = 0
    # Steps whose checkpoints are being written.
    _writing: set[int] = field(default_factory=set)
    # Free space after an attempt that found too little, in bytes. None: the last one found enough.
    _too_few_bytes: int | None = None
    # True if space was made since.
    _has_made_space: bool = False

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
        self._writing.clear()
        checkpoint = self.store.newest(self._report_damaged)
        # Evaluations after the checkpoint are repeated.
        self.evaluations = [] if checkpoint is None else [*checkpoint.record.evaluations]
        if checkpoint is not None:
            self.newest_step = checkpoint.record.step
            self._num_bytes = checkpoint.record.num_bytes
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
        self.recorder.notice_once(damaged_text(step, error))

    def record_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record evaluation metrics after a step, for its checkpoint and all later ones."""
        self._evaluation = (step, metrics)
        # Not only the metric of the manifest: a resumed job may name another one.
        compared = {kind.metric for kind in KeepBest}
        self.evaluations.append((step, {k: v for k, v in metrics.items() if k in compared}))

    def begin(self, ranks: Sequence[Any], step: int) -> list[Any]:
        """Let all ranks copy their state and begin to write it."""
        self._writing.add(step)
        self._has_made_space = False
        try:
            self._report_deleted()
            self._make_space(step)
            address = self.store.begin(step)
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
        self.recorder.notice(
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
        self._writing.discard(step)
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
        self.newest_step, self._num_bytes = step, record.num_bytes
        self._too_few_bytes = None
        self._damaged.discard(step)
        self._kept.add(step)
        self.recorder.saved(step, checkpoint.address)
        self._prune(step)

    def _prune(self, step: int) -> None:
        """Delete the checkpoints that are not kept."""
        try:
            records = {saved: self.store.record(saved) for saved in self.store.steps()}
            complete = self._usable(records, step)
            self._drop_answers([record.step for record in complete])
            kept = steps_to_keep(complete, self.settings.keep_last, self.settings.keep_best.metric)
            self._kept = kept & records.keys()
            for saved, record in records.items():
                # Files of the next step may be on their way already.
                is_being_written = record is None and saved > step
                if saved not in kept and not is_being_written:
                    self.store.remove(saved)
            self.store.remove_unfinished(step, self._writing)
        except StorageFailed as error:
            self.recorder.notice_once(
                f"old checkpoints could not be deleted: got {error}; they stay there"
            )

    def _usable(
        self, records: Mapping[int, CheckpointRecord | None], newest: int
    ) -> list[CheckpointRecord]:
        """Return the records of checkpoints that a job can resume from.

        Args:
            records: by step; None: the checkpoint has none.
            newest: step of the newest one.
        """
        return [
            record
            for saved, record in records.items()
            # A checkpoint after the newest is damaged, else the job had resumed from it.
            if record and saved <= newest and saved not in self._damaged
        ]

    def _make_space(self, step: int) -> None:
        """Delete what the checkpoint of a step needs the space of, the oldest one first."""
        self.store.remove_unfinished(step, self._writing)
        while not self._has_space() and self._delete_oldest():
            pass

    def _has_space(self) -> bool:
        """True if all checkpoints that are being written will fit, if they are like the last."""
        free = self.store.free_bytes()
        if free is None:
            return True
        needed = self._num_bytes + SPARE_BYTES
        written = [self.store.written_bytes(step) for step in self._writing]
        return sum(max(0, needed - done) for done in written) <= free

    def _delete_oldest(self) -> bool:
        """Delete the checkpoint that is needed least. Returns False if there is none to delete.

        The newest one stays.
        """
        records = {saved: self.store.record(saved) for saved in self.store.steps()}
        usable = self._usable(records, self.newest_step)
        newest = records.get(self.newest_step)
        # Nothing goes unless another one can be used, nor from object stores.
        if self.store.free_bytes() is None:
            return False
        if newest is None or newest not in usable or not self.store.has_files(newest):
            return False
        useless = sorted(records.keys() - {record.step for record in usable})
        needs_best = self.settings.final_model is FinalModel.BEST
        best_by = self.settings.keep_best.metric
        deleted = [*useless, *deletion_order(usable, newest.step, best_by, needs_best)][:1]
        for saved in deleted:
            self.store.remove(saved)
            self._kept.discard(saved)
            self.recorder.notice(
                f"the checkpoint of step {saved} was deleted: the disk has no space for something "
                f"newer beside it; that of step {newest.step} stays"
            )
        return bool(deleted)

    def make_space_for_model(self) -> bool:
        """Delete the checkpoint that is needed least, for the model. Returns False if none was.

        The newest one stays; those on another disk do, too.
        """
        storage = self.settings.storage
        if storage is not None and storage.uri is not None:
            return False
        with suppress(StorageFailed):
            return self._delete_oldest()
        return False

    def should_retry(self) -> bool:
        """True if the last checkpoint found no space, and another attempt may find some."""
        if self._too_few_bytes is None or self._writing:
            return False
        # Regular attempts follow anyway, so errors need no report here.
        with suppress(StorageFailed):
            free = self.store.free_bytes() or 0
            has_more = grew(free, self._too_few_bytes) and free >= self._num_bytes + SPARE_BYTES
            return self._has_made_space or has_more
        return False

    def _drop_answers(self, steps: Sequence[int]) -> None:
        """Drop the answers that the last checkpoints do not need.

        steps: of all complete checkpoints.
        """
        newest = sorted(steps)[-self.settings.keep_last :]
        if self.journal is not None and newest:
            self.journal.drop_before(newest[0])

    def limit_journal(self, position: Position) -> None:
        """Keep the journal within its limit after a step or an evaluation."""
        if self.journal is not None:
            self.journal.end_pass(position)

    def _handle_failure(self, step: int, error: RuntimeFailure) -> None:
        self._writing.discard(step)
        self._too_few_bytes, self._has_made_space = None, False
        text = f"the checkpoint of step {step} could not be written: {error}"
        # Leftovers are reported as unfinished when the job resumes.
        with suppress(StorageFailed):
            self.store.abandon(step)
            if error.is_disk_full:
                self._has_made_space = self._delete_oldest()
                self._too_few_bytes = self.store.free_bytes() or 0
        if self._has_made_space:
            text += "; it is tried again"
        elif self.settings.on_error is OnCheckpointError.FAIL:
            text += "; older checkpoints are untouched"
            raise (NoSpace if error.is_disk_full else CheckpointFailed)(text) from error
        else:
            text += "; older checkpoints are untouched; training goes on (checkpoint.onError)"
        problem = SavingProblem.NO_SPACE if error.is_disk_full else SavingProblem.WRITE_FAILED
        self.recorder.not_saved(step, problem, text)


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
