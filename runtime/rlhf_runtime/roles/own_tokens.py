"""Which response tokens are the policy's own: what a batch's response mask says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_flow.step.columns import RESPONSE_MASK
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.errors import UserCodeFailed
from rlhf_runtime.numerics.padding import pad


class OwnTokens(NamedTuple):
    """The response tokens of some rows that count."""

    flags: torch.Tensor
    """bool[tokens]: whether each does, row after row."""
    counts: torch.Tensor
    """int64[rows]: how many of each row do."""

    @classmethod
    def of(cls, columns: Mapping[str, Column], lengths: NDArray[np.int32], rows: Rows) -> OwnTokens:
        """Those that the response mask keeps; all, where there is none.

        Args:
            columns: of the rows.
            lengths: tokens of each row's response.
            rows: their numbers in the batch, for messages.

        Raises:
            UserCodeFailed: the mask is none for these responses.
        """
        mask = columns.get(RESPONSE_MASK)
        whole = torch.tensor(lengths, dtype=torch.int64)
        if mask is None:
            return cls(torch.ones(int(whole.sum()), dtype=torch.bool), whole)
        if wrong := _wrong_mask(mask, lengths, rows):
            raise UserCodeFailed(f"{RESPONSE_MASK} {wrong}")
        flags = torch.tensor(mask.values != 0)
        return cls(flags, pad(flags, whole)[0].sum(dim=1))


def _wrong_mask(mask: Column, lengths: NDArray[np.int32], rows: Rows) -> str:
    """What is wrong with a mask; empty: nothing."""
    if mask.lengths is None:
        return (
            "has one value per row: got no lengths, allowed one value for each response token; "
            'write Column(mask, columns["response_tokens"].lengths)'
        )
    off = np.flatnonzero(mask.lengths != lengths)
    if len(off):
        return (
            f"has other lengths than the responses: got {int(mask.lengths[off[0]])} values in row "
            f"{int(rows[off[0]])}, allowed {int(lengths[off[0]])}; write "
            'Column(mask, columns["response_tokens"].lengths)'
        )
    odd = np.flatnonzero(~np.isin(mask.values, (0, 1)))
    if len(odd):
        row = int(rows[np.searchsorted(np.cumsum(lengths), odd[0], side="right")])
        return (
            f"has another value than 0 and 1: got {mask.values[odd[0]]} in row {row}, allowed 1 "
            "for a token of the policy's own and 0 for one that is not trained on; correct the "
            "operation that writes it"
        )
    return ""
