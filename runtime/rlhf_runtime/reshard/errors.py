"""The errors of resharding.

ReshardError           base
├── LayoutError        InvalidLayout     a layout that does not describe its tensors
├── InvalidReshard     InvalidReshard    two incompatible layouts; an invalid bucket size
└── TransferError      TransferMismatch  views, ranks or dtypes that do not match the plan
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError


class ReshardError(RlhfError):
    """Weights cannot be brought from one layout to another."""

    reason = "ReshardFailed"


class LayoutError(ReshardError):
    """A layout that omits a part of a tensor, or reaches beyond it."""

    reason = "InvalidLayout"


class InvalidReshard(ReshardError):
    """Two incompatible layouts, or an invalid bucket size."""

    reason = "InvalidReshard"


class TransferError(ReshardError):
    """Views, ranks or dtypes that do not match the plan."""

    reason = "TransferMismatch"
