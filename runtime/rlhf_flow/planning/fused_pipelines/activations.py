"""Which forward passes may start under a limit on activations, so that no device waits for ever.
Pure but for its own counts."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_flow.errors import DoesNotFit
from rlhf_flow.planning.fused_pipelines.pipeline import Operation, Workload


def check_limit(workload: Workload, limit: int) -> None:
    """Refuse a limit under which no schedule comes to an end.

    Raises:
        DoesNotFit: less than one micro-batch needs on some device.
    """
    for pipeline in workload.pipelines:
        for stage, size in enumerate(pipeline.activation_bytes):
            if size > limit:
                raise DoesNotFit(
                    f"activations of one micro-batch do not fit: got {size} bytes for stage "
                    f"{stage} of {pipeline.name}, allowed {limit}; make micro-batches smaller, or "
                    "recompute activations"
                )


@dataclass(frozen=True)
class Limits:
    """What holds forward passes back."""

    activation_bytes: int | None = None
    """On each device, as `check_limit` allows. None: any number."""
    ahead: tuple[int | None, ...] = ()
    """Of each pipeline: by how many forward passes a stage may be ahead of its backward passes,
    more or less than under 1F1B, which is by as many as there are stages from it to the last; 1 at
    least. None: any number, as for all pipelines where this is empty."""


class ActivationLimit:
    """Counts what devices hold of activations.

    A forward pass may start if, after it, all micro-batches under way can still come to their end
    within the limit, one after the other if need be. So there is always one that can go on. With no
    more than the limit as a rule, two pipelines that meet could fill each other's devices, and wait
    for ever. The oldest micro-batch of a pipeline is never held back for being ahead.

    Source: Dijkstra's banker's algorithm (EWD 623). A micro-batch's claim is its activations on all
    stages; it gives them back after it has had all of them.
    """

    def __init__(self, workload: Workload, limits: Limits) -> None:
        self._workload = workload
        self._limit = limits.activation_bytes
        self._ahead = limits.ahead or (None,) * len(workload.pipelines)
        self._held = [0] * workload.num_devices
        self._started = [[0] * pipeline.num_stages for pipeline in workload.pipelines]
        """Forward passes so far, of each stage of each pipeline."""
        self._ended = [[0] * pipeline.num_stages for pipeline in workload.pipelines]
        """Backward passes so far."""

    def may_start(self, op: Operation) -> bool:
        """Whether an operation may start; backward passes always may."""
        if op.is_backward:
            return True
        pipeline, ahead = self._workload.pipelines[op.pipeline], self._ahead[op.pipeline]
        started, ended = self._started[op.pipeline], self._ended[op.pipeline]
        if ahead is not None:
            most = max(1, pipeline.num_stages - op.stage + ahead)
            if started[op.stage] - ended[op.stage] >= most:
                return False
        if self._limit is None:
            return True
        device, size = pipeline.devices[op.stage], pipeline.activation_bytes[op.stage]
        if self._held[device] + size > self._limit:
            return False
        started[op.stage] += 1
        is_safe = self._all_can_end(self._limit)
        started[op.stage] -= 1
        return is_safe

    def start(self, op: Operation) -> None:
        """Note that an operation starts."""
        if not op.is_backward:
            self._started[op.pipeline][op.stage] += 1
            self._add(op, 1)

    def end(self, op: Operation) -> None:
        """Note that an operation has ended."""
        if op.is_backward:
            self._ended[op.pipeline][op.stage] += 1
            self._add(op, -1)

    def _add(self, op: Operation, times: int) -> None:
        pipeline = self._workload.pipelines[op.pipeline]
        self._held[pipeline.devices[op.stage]] += times * pipeline.activation_bytes[op.stage]

    def _all_can_end(self, limit: int) -> bool:
        """Let micro-batches that go forward end, the oldest of each pipeline first. Those that have
        been through all stages need nothing more."""
        used = self._used_on_the_way()
        waiting = [(started[-1], started[0]) for started in self._started]
        is_changed = True
        while is_changed:
            is_changed = False
            for index, (oldest, newest) in enumerate(waiting):
                while oldest < newest and self._can_end(index, oldest, used, limit):
                    oldest, is_changed = oldest + 1, True
                waiting[index] = oldest, newest
        return all(oldest == newest for oldest, newest in waiting)

    def _used_on_the_way(self) -> list[int]:
        """Bytes on each device of micro-batches that have not been through all stages forward."""
        used = [0] * len(self._held)
        for pipeline, started in zip(self._workload.pipelines, self._started, strict=True):
            for device, size, count in zip(
                pipeline.devices, pipeline.activation_bytes, started, strict=True
            ):
                used[device] += (count - started[-1]) * size
        return used

    def _can_end(self, index: int, micro_batch: int, used: list[int], limit: int) -> bool:
        """Whether a micro-batch has room on all stages that are left; if so, what it holds is given
        back."""
        pipeline, started = self._workload.pipelines[index], self._started[index]
        devices, sizes = pipeline.devices, pipeline.activation_bytes
        stage = len(devices) - 1
        while started[stage] <= micro_batch:
            if used[devices[stage]] + sizes[stage] > limit:
                return False
            stage -= 1
        for entered in range(stage + 1):
            used[devices[entered]] -= sizes[entered]
        return True
