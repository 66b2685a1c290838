"""Metrics that a role collects while a call runs."""

from __future__ import annotations

from math import isfinite

import torch

from rlhf_runtime.calls.reports import Statistics, larger
from rlhf_runtime.roles.mini_batches import MiniBatch
from rlhf_runtime.telemetry.spread import Spread


class MetricAccumulator:
    """Collects weighted means, maxima, sums and standard deviations.

    Numbers may be tensors on a device. They are read when `statistics` is called, all together.
    """

    # Reading a tensor at once would make the host wait for the device at every micro-batch.

    def __init__(self) -> None:
        # Contributions to means: name, total, weight.
        self._totals: list[tuple[str, float | torch.Tensor, float]] = []
        self._maxima: list[tuple[str, float | torch.Tensor]] = []
        self._sums: dict[str, float] = {}
        self._spreads: dict[str, Spread] = {}

    def record_mean(self, name: str, total: float | torch.Tensor, weight: float) -> None:
        """Add to a mean.

        Args:
            name: of the metric.
            total: a number, or a tensor of one.
            weight: added to the mean's divisor.
        """
        self._totals.append((name, _detached(total), weight))

    def record_max(self, name: str, value: float | torch.Tensor) -> None:
        """Raise a maximum to a value: a number, or a tensor of one."""
        self._maxima.append((name, _detached(value)))

    def record_sum(self, name: str, amount: float) -> None:
        """Add to a sum over ranks."""
        self._sums[name] = self._sums.get(name, 0.0) + amount

    def record_spread(self, name: str, values: torch.Tensor) -> None:
        """Add values to those whose standard deviation is the metric."""
        added = Spread.of(values.numpy())
        before = self._spreads.get(name)
        self._spreads[name] = added if before is None else before.joined(added)

    def record_update(self, role: str, rate: float, norm: float, share: float) -> None:
        """Record an optimizer step of a role; a step whose norm is not finite was skipped."""
        # Norm and rate are equal on all ranks, whose shares sum to 1.
        self.record_mean(f"{role}/gradient_norm", norm * share, share)
        self.record_sum(f"{role}/skipped_updates", 0.0 if isfinite(norm) else share)
        self.record_mean(f"{role}/learning_rate", rate * share, share)

    def record_left_out_update(self, role: str, rate: float, share: float) -> None:
        """Record an optimizer step of a role that was left out because nothing counted in it."""
        self.record_sum(f"{role}/empty_updates", share)
        self.record_mean(f"{role}/learning_rate", rate * share, share)

    def record_tokens(self, role: str, batch: MiniBatch) -> None:
        """Record the number of tokens, over all ranks, that a loss averages over."""
        tokens = batch.denominators.num_tokens
        self.record_mean(f"{role}/loss_tokens", tokens * batch.share, batch.share)

    def statistics(self) -> Statistics:
        """Return everything collected so far; reads what is on a device."""
        means: dict[str, tuple[float, float]] = {}
        totals = _numbers([total for _, total, _ in self._totals])
        for (name, _, weight), total in zip(self._totals, totals, strict=True):
            before = means.get(name, (0.0, 0.0))
            means[name] = (before[0] + total, before[1] + weight)
        maxima: dict[str, float] = {}
        values = _numbers([value for _, value in self._maxima])
        for (name, _), value in zip(self._maxima, values, strict=True):
            # `larger` keeps a NaN, which `max` could drop.
            maxima[name] = larger(maxima.get(name, value), value)
        return Statistics(means, maxima, self._sums, self._spreads)


def _detached(value: float | torch.Tensor) -> float | torch.Tensor:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _numbers(values: list[float | torch.Tensor]) -> list[float]:
    """Convert all values to numbers, with one copy from every device."""
    # A loss may compute on the host what lacks a part of its inputs on the device.
    on_device: dict[torch.device, list[torch.Tensor]] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            on_device.setdefault(value.device, []).append(value.double())
    copied = {device: iter(torch.stack(some).tolist()) for device, some in on_device.items()}
    return [
        next(copied[value.device]) if isinstance(value, torch.Tensor) else value for value in values
    ]
