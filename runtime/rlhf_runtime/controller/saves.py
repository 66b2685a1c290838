"""The driver's part in checkpoints: has ranks write, commits, keeps the last ones and the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isnan, nan
from types import MappingProxyType
from typing import Any

from rlhf_api.plan import Plan
from rlhf_api.spec.checkpoint import CheckpointSpec, OnCheckpointError
from rlhf_runtime.checkpoint.record import CheckpointRecord, SavedFile
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
    """References to what each rank wrote."""


@dataclass
class CheckpointManager:
    """Checkpoints of one job, over all of its incarnations."""

    store: CheckpointStore
    settings: CheckpointSpec
    spec: Mapping[str, Any]
    """The job's spec in force, with defaults, by wire names."""
    journal: Journal
    plan: Plan | None = None
    """Where checkpoints say what the plan knows of their models."""
    _evaluation: tuple[int, Mapping[str, float]] = (0, MappingProxyType({}))
    """The last evaluation: after which step, and its metrics."""
    newest_step: int = -1
    """The step of the last checkpoint that is known to be whole; -1: none is."""
    _damaged: set[int] = field(default_factory=set)
    _has_claimed: bool = False
    _kept: set[int] = field(default_factory=set)
    """Steps whose checkpoints stay until further ones are written."""

    def claim(self) -> None:
        """Save at this address from now on. Only once: who takes it over later keeps it."""
        if not self._has_claimed:
            self.store.claim()
            self._has_claimed = True

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint; tells about newer ones that are not.

        Raises:
            StorageFailed: nobody knows, because they cannot be read now.
        """
        checkpoint = self.store.newest(self._report_damaged)
        if checkpoint is not None:
            self.newest_step = checkpoint.record.step
            self._kept = {self.newest_step}
        return checkpoint

    def _report_damaged(self, step: int, error: CheckpointDamaged) -> None:
        self._damaged.add(step)
        self.journal.notice_once(damaged_text(step, error))

    def record_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Held-out metrics after a step; they belong to its checkpoint."""
        self._evaluation = (step, metrics)

    def begin(self, ranks: Sequence[Any], step: int) -> list[Any]:
        """Have all ranks copy their state and begin to write it."""
        try:
            address = self.store.begin(step)
            self._report_deleted()
        except StorageFailed as error:
            self._handle_failure(step, error)
            return []
        return [rank.begin_save.remote(address, step) for rank in ranks]

    def _report_deleted(self) -> None:
        """Say so where somebody has deleted checkpoints that stay: what follows is written as
        ever."""
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
            self.store.claim()  # its name has gone with them

    def wait(self, copying: Sequence[Any], poll: Hook = noop) -> None:
        """Wait until state is copied; `look` is called every few seconds."""
        wait_for(copying, poll)

    def finish(self, ranks: Sequence[Any], step: int) -> PendingCheckpoint:
        """Have all ranks finish what they write."""
        return PendingCheckpoint(
            step, len(ranks), [rank.finish_save.remote(step) for rank in ranks]
        )

    def commit(self, finishing: PendingCheckpoint, poll: Hook = noop) -> None:
        """Wait until everything is written, and make it the checkpoint of its step.

        `look` is called every few seconds.

        Raises:
            CheckpointFailed: it could not be written, and the manifest says to fail then.
        """
        step = finishing.step
        try:
            written: list[dict[str, SavedFile]] = wait_for(finishing.files, poll)
        except CheckpointFailed as error:
            wait_for_end(finishing.files, poll)  # ranks of other pools may write there still
            self._handle_failure(step, error)
            return
        files = {name: file for part in written for name, file in part.items()}
        if not files:
            return  # it was never begun, which has been told
        evaluated_step, metrics = self._evaluation
        record = CheckpointRecord(
            step=step,
            world_size=finishing.world_size,
            spec=self.spec,
            metrics=dict(metrics) if evaluated_step == step else {},
            files=files,
            **_model_fields(self.plan),
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
        """Delete what is not kept. The next step's files may be on their way already.

        A checkpoint ahead of the newest one is damaged, else the job had gone on from it.
        """
        try:
            records = {saved: self.store.record(saved) for saved in self.store.steps()}
            complete = [
                record
                for saved, record in records.items()
                if record and saved <= step and saved not in self._damaged
            ]
            kept = steps_to_keep(complete, self.settings.keep_last, self.settings.keep_best.metric)
            self._kept = kept & records.keys()
            for saved, record in records.items():
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
        with suppress(StorageFailed):  # what stays is named as unfinished when the job goes on
            self.store.abandon(step)
        if self.settings.on_error is OnCheckpointError.FAIL:
            raise CheckpointFailed(text) from error
        self.journal.notice(f"{text}; training goes on (checkpoint.onError)")


def _model_fields(plan: Plan | None) -> dict[str, Any]:
    """What a record says of the models of a plan."""
    if plan is None:
        return {}
    precisions = {role.role: role.precision.value for role in plan.roles if role.precision}
    return {"policy": plan.policy, "precisions": precisions}


def steps_to_keep(records: list[CheckpointRecord], keep_last: int, best_by: str | None) -> set[int]:
    """Steps whose checkpoints stay: the newest, and the one with the largest metric.

    Args:
        records: of all checkpoints.
        keep_last: how many of the newest.
        best_by: a held-out metric; None: no best one is kept.
    """
    newest = sorted((record.step for record in records), reverse=True)[:keep_last]
    scores = [(record.metrics.get(best_by or "", nan), record.step) for record in records]
    best = max(((value, step) for value, step in scores if not isnan(value)), default=None)
    return {*newest, *([] if best is None else [best[1]])}
