"""Transfer protocol of a call, and the bounds of the rows that it gives a rank.

The driver uses it to send a rank what it needs, the rank to find its rows in that.
"""

from __future__ import annotations

from rlhf_api.calls import CallKind
from rlhf_flow.step.calls import ModelCall
from rlhf_runtime.dataplane.partition import BatchShape, balancing_window, contiguous_rows
from rlhf_runtime.dataplane.protocol import PROTOCOLS, Coordinates, Protocol
from rlhf_runtime.dataplane.user_protocol import user_protocol

# Default protocol of a kind of call; a call may name a user's protocol instead.
BY_KIND: dict[CallKind, str] = {
    CallKind.GENERATE: "3d_all_micro_dp",
    CallKind.INFER: "3d",
    CallKind.TRAIN: "3d",
    CallKind.COMPUTE: "3d",
    CallKind.SCORE: "dp",
    CallKind.COPY: "one_to_all",
    CallKind.SAVE: "one_to_all",
    CallKind.RESHARD: "one_to_all",
    CallKind.FINISH: "3d_all_micro_dp",
    CallKind.RELEASE: "one_to_all",
    CallKind.LOAD: "one_to_all",
    CallKind.OFFLOAD: "one_to_all",
}

# Kinds of calls whose ranks balance tokens. Others get whole groups, equally many.
BALANCED = frozenset({CallKind.INFER, CallKind.TRAIN})


def protocol_of(call: ModelCall) -> Protocol:
    """Return the protocol of a call.

    Raises:
        UserCodeFailed: a user's protocol cannot be imported.
    """
    if call.protocol is not None:
        return user_protocol(call.protocol)
    return PROTOCOLS[BY_KIND[call.kind]]


def row_bounds(call: ModelCall, shape: BatchShape, at: Coordinates, groups: range) -> range:
    """Return bounds that contain all rows that a rank reads and writes of some groups.

    Raises:
        UserCodeFailed: the user's protocol returns no slice.
    """
    batch_slice = protocol_of(call).distribute(at)
    if call.kind in BALANCED:
        # Which rows of the window a rank gets depends on lengths, which the driver does not know.
        window = balancing_window(
            groups, shape.rows_per_group, batch_slice, call.compares_responses
        )
        return window.span.bounds
    return contiguous_rows(groups, shape.rows_per_group, batch_slice).bounds
