"""Which checkpoints stay. Pure."""

from __future__ import annotations

from math import isnan, nan

from rlhf_runtime.checkpoint.record import CheckpointRecord


def kept_steps(records: list[CheckpointRecord], keep_last: int, best_by: str | None) -> set[int]:
    """Steps whose checkpoints stay: the newest, and the one with the largest metric.

    Args:
        records: of all checkpoints.
        keep_last: how many of the newest.
        best_by: a held-out metric; None: no best one is kept.
    """
    newest = sorted((record.step for record in records), reverse=True)[:keep_last]
    measured = [(record.metrics.get(best_by or "", nan), record.step) for record in records]
    best = max(((value, step) for value, step in measured if not isnan(value)), default=None)
    return {*newest, *([] if best is None else [best[1]])}
