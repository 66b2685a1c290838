"""Chooses the checkpoints that stay, and those that go first on a full disk. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.checkpoint.record import CheckpointRecord, best_first


def steps_to_keep(
    records: Sequence[CheckpointRecord], keep_last: int, best_by: str | None
) -> set[int]:
    """Return the steps whose checkpoints are kept: the newest, and the one with the largest metric.

    Args:
        records: of all checkpoints.
        keep_last: number of the newest.
        best_by: an evaluation metric; None: no best one is kept.
    """
    newest = sorted((record.step for record in records), reverse=True)[:keep_last]
    return {*newest, *_best_step(records, best_by)}


def deletion_order(
    records: Sequence[CheckpointRecord], newest: int, best_by: str | None, needs_best: bool
) -> list[int]:
    """Return the steps of the checkpoints that may go for the next one, the first to go first.

    The oldest go first, the one with the largest metric last. The newest one stays.

    Args:
        records: of all checkpoints.
        newest: step of the newest one that can be used.
        best_by: an evaluation metric; None: there is no best one.
        needs_best: True if the best one must stay, because its weights become the model.
    """
    best = _best_step(records, best_by)
    older = sorted(record.step for record in records if record.step < newest)
    others = [step for step in older if step not in best]
    return others if needs_best else [*others, *(step for step in older if step in best)]


def _best_step(records: Sequence[CheckpointRecord], best_by: str | None) -> set[int]:
    best = [] if best_by is None else best_first(records, best_by)[:1]
    return {record.step for record in best}
