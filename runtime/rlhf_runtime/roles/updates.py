"""Optimizer steps of a role, taken or left out, with their metrics."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.engines.training import TrainingEngine, WeightedLoss
from rlhf_runtime.roles.metrics import MetricAccumulator


def take_update(
    engine: TrainingEngine,
    losses: Sequence[WeightedLoss],
    role: str,
    metrics: MetricAccumulator,
    share: float,
) -> None:
    """Run an optimizer step. Collective.

    share: this rank's weight in means over mini-batches and ranks.
    """
    rate = engine.learning_rate
    norm = engine.update(losses)
    metrics.record_update(role, rate, norm, share)


def leave_out_update(
    engine: TrainingEngine, role: str, metrics: MetricAccumulator, share: float
) -> None:
    """Leave out an optimizer step in whose losses nothing counts, on all ranks.

    share: as of `take_update`.
    """
    rate = engine.learning_rate
    engine.leave_out_update()
    metrics.record_left_out_update(role, rate, share)
