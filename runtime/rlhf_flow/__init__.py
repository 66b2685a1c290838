"""What is computed and where: algorithms, the graph traced from them, and its plan.

A user's own algorithm needs the names below and `rlhf_flow.operations`.
"""

from rlhf_api.plan import CallKind, RoleKind
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.flow import Backend, BatchValue, Flow
from rlhf_flow.losses import ClippedLoss, CrossEntropy, ValueLoss
from rlhf_flow.operations import Operation

__all__ = [
    "Algorithm",
    "Backend",
    "BatchValue",
    "CallKind",
    "ClippedLoss",
    "CrossEntropy",
    "Flow",
    "Operation",
    "RoleKind",
    "ValueLoss",
]
