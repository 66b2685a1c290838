"""The columns that operations read and write."""

from __future__ import annotations

import numpy as np
import torch

from rlhf_flow.step.columns import RESPONSE_MASK
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.numerics.moments import Reduce
from rlhf_runtime.numerics.padding import length_mask, pad, unpad
from rlhf_runtime.roles.custom_operation import OperationState
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import LossMask
from rlhf_runtime.roles.sequences import as_tensor, lengths_of


class Workspace:
    """The columns that a compute call works on, with the metrics it collects."""

    def __init__(
        self,
        columns: dict[str, Column],
        numbers: Rows,
        groups: np.ndarray,
        sum: Reduce,
        metrics: MetricAccumulator,
        state: OperationState,
        step: int,
    ) -> None:
        self.columns = columns
        # The rows' numbers in the batch.
        self.numbers = numbers
        self.groups = torch.tensor(groups)
        # Sums over all ranks that share the batch.
        self.sum = sum
        self.metrics = metrics
        self.state = state
        self.step = step

    def rows(self, name: str) -> torch.Tensor:
        """Return a column with one value per row."""
        return as_tensor(self.columns[name])

    def padded(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a ragged column as [rows, longest], and the mask of its counting tokens."""
        column = self.columns[name]
        return pad(as_tensor(column), lengths_of(column))[0], self.mask(name)

    def mask(self, name: str) -> torch.Tensor:
        """Return the mask of a ragged column's counting tokens: bool[rows, longest].

        Raises:
            UserCodeFailed: the response mask does not fit the column.
        """
        column = self.columns[name]
        assert column.lengths is not None
        mask = LossMask.from_columns(self.columns, column.lengths, self.numbers)
        return pad(mask.flags, lengths_of(column))[0]

    def put(self, name: str, padded: torch.Tensor, mask: torch.Tensor) -> None:
        """Store a ragged column from [rows, longest], with 0 on tokens that do not count.

        Args:
            name: the column's.
            padded: its values; [rows, 1] gives all tokens of a row the same value.
            mask: True on counting tokens.
        """
        response_mask = self.columns.get(RESPONSE_MASK)
        # Masked tokens keep their positions in the column, with value 0.
        present = mask if response_mask is None else length_mask(lengths_of(response_mask))
        values = unpad(torch.where(mask, padded.float(), 0.0), present)
        self.columns[name] = Column(values.numpy(), present.sum(dim=1).to(torch.int32).numpy())

    def put_rows(self, name: str, values: torch.Tensor) -> None:
        """Store a column with one value per row."""
        stored = values.to(torch.int8) if values.dtype is torch.bool else values.float()
        self.columns[name] = Column(stored.numpy())
