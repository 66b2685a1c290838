"""The errors of resharding.

ReshardError           base
├── LayoutError        InvalidLayout     a layout that does not describe its tensors
├── PlanError          InvalidReshard    two layouts that do not fit each other; a bucket size
└── TransferError      TransferMismatch  views, ranks or dtypes that do not fit the plan
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError


class ReshardError(RlhfError):
    """Weights cannot be brought from one layout to another."""

    reason = "ReshardFailed"


class LayoutError(ReshardError):
    """A layout that leaves a part of a tensor out, or reaches beyond it."""

    reason = "InvalidLayout"


class PlanError(ReshardError):
    """Two layouts that do not fit each other, or a bucket size that is none."""

    reason = "InvalidReshard"


class TransferError(ReshardError):
    """Views, ranks or dtypes that do not fit the plan."""

    reason = "TransferMismatch"
