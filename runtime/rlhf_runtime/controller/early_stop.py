"""The decision to end training before its last step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan, nan

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.schedule import EarlyStopSpec


@dataclass(frozen=True)
class EarlyStop:
    """An end of training before its last step, and its cause."""

    settings: EarlyStopSpec
    metric: str
    """The evaluation metric that did not improve."""
    step: int
    """Last step."""
    total_steps: int
    """Steps of the schedule."""
    best: float
    """Largest value of the metric."""
    best_step: int
    """The first step with it."""

    def __str__(self) -> str:
        least, patience = self.settings.min_delta, self.settings.patience
        return (
            f"training ended early, after step {self.step} of {self.total_steps}: {self.metric} "
            f"has not risen{f' by more than {least:g}' if least else ''} in {patience} "
            f"evaluation{'s' if patience > 1 else ''}; its best value is {self.best:.5g}, of step "
            f"{self.best_step} (schedule.earlyStop)"
        )


def early_stop(
    spec: RLHFJobSpec, step: int, evaluations: Iterable[tuple[int, Mapping[str, float]]]
) -> EarlyStop | None:
    """Decide if training ends after an evaluated step before the last one. None: it continues.

    Args:
        spec: of the job, with patience, metric and number of steps.
        step: the step.
        evaluations: step and metrics of all evaluations so far, in order. One without the metric,
            or with NaN, does not count.
    """
    settings, metric = spec.schedule.early_stop, spec.checkpoint.keep_best.metric
    if settings is None or metric is None or step >= spec.schedule.steps:
        return None
    measured = [
        (at, value) for at, metrics in evaluations if not isnan(value := metrics.get(metric, nan))
    ]
    before, latest = measured[: -settings.patience], measured[-settings.patience :]
    # Only an evaluation ends training, so that the last step has one.
    if not before or latest[-1][0] != step:
        return None
    if _largest(latest)[1] > _largest(before)[1] + settings.min_delta:
        return None
    best_step, best = _largest(measured)
    return EarlyStop(settings, metric, step, spec.schedule.steps, best, best_step)


def _largest(values: list[tuple[int, float]]) -> tuple[int, float]:
    """Return the first of the largest values, with its step."""
    return max(values, key=lambda pair: pair[1])
