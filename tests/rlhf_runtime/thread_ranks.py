"""Several ranks as threads of one process: collectives without processes, in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError
from typing import TypeVar, cast

import torch
from torch import Tensor

from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.numerics.moments import Reduce

T = TypeVar("T")

WAIT_SECONDS = 60.0
"""Longest wait for another rank: they end together, so it never comes to that."""
END = "the end"


class ThreadRanks:
    """Runs one function on several ranks at once. A collective that not all of them call fails."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = Barrier(size)
        self._slots: list[tuple[str, Tensor]] = [("", torch.empty(0))] * size

    def run(self, function: Callable[[int], T]) -> list[T]:
        """What the function returns on every rank; it gets the rank's number."""

        def on_rank(rank: int) -> T:
            try:
                result = function(rank)
                self.exchange(rank, END, torch.zeros(0))
            except BaseException:
                self._barrier.abort()
                raise
            return result

        with ThreadPoolExecutor(self.size) as pool:
            calls = [pool.submit(on_rank, rank) for rank in range(self.size)]
        errors = [error for call in calls if (error := call.exception()) is not None]
        if errors:  # a rank that failed by itself says more than those that waited for it
            raise min(errors, key=lambda error: isinstance(error, BrokenBarrierError))
        return [call.result() for call in calls]

    def exchange(self, rank: int, collective: str, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks.

        Args:
            rank: whose tensor it is.
            collective: its name: the same on all ranks, as are shape and dtype of the tensor.
            tensor: the rank's own.
        """
        self._slots[rank] = collective, tensor
        self._barrier.wait(WAIT_SECONDS)
        slots = list(self._slots)
        self._barrier.wait(WAIT_SECONDS)
        forms = {(name, slot.dtype, tuple(slot.shape)) for name, slot in slots}
        assert len(forms) == 1, f"ranks call different collectives: {forms}"
        return [slot for _, slot in slots]

    def reduce(self, rank: int) -> Reduce:
        """The sum over ranks, as one of them calls it."""

        def total(vector: Tensor) -> Tensor:
            assert vector.dtype == torch.float64
            return torch.stack(self.exchange(rank, "sum", vector)).sum(dim=0)

        return total

    def parallel(self, rank: int) -> ParallelContext:
        """A mesh of all ranks along the data axis, as one of them sees it."""
        return cast(ParallelContext, ThreadParallel(self, rank))


@dataclass(frozen=True)
class ThreadParallel:
    """As far as operations, losses and the common part of engines use a mesh."""

    ranks: ThreadRanks
    rank: int
    device: torch.device = torch.device("cpu")

    @property
    def data_size(self) -> int:
        return self.ranks.size

    def sum(self, values: Tensor) -> Tensor:
        return torch.stack(self.ranks.exchange(self.rank, "sum", values)).sum(dim=0)

    def max(self, values: Tensor) -> Tensor:
        return torch.stack(self.ranks.exchange(self.rank, "max", values)).amax(dim=0)
