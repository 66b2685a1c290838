"""The columns of generated responses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_api.spec.stopping import OnStop, StopAction
from rlhf_flow.step import columns
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.engines.response_batch import Generated


def response_columns(
    generated: Generated, texts: Sequence[str], on_stop: OnStop
) -> dict[str, Column]:
    """Return the columns of responses, complete or not.

    Args:
        generated: the responses.
        texts: of the responses, decoded.
        on_stop: treatment of responses by the reason for their end.
    """
    return {
        columns.RESPONSE_TOKENS: generated.tokens,
        columns.ROLLOUT_LOG_PROBS: generated.log_probs,
        columns.FINISHED: Column(generated.finished),
        columns.STOP_REASON: pack_texts(
            ["" if reason is None else reason.value for reason in generated.reasons]
        ),
        columns.UNMASKED: _is_not(StopAction.MASK, generated, on_stop),
        columns.RETAINED: _is_not(StopAction.LEAVE_OUT, generated, on_stop),
        columns.RESPONSE_TEXT: pack_texts(texts),
        **({} if generated.kept_tokens is None else {columns.KEPT_TOKENS: generated.kept_tokens}),
        **({} if generated.mask is None else {columns.RESPONSE_MASK: generated.mask}),
    }


def _is_not(action: StopAction, generated: Generated, on_stop: OnStop) -> Column:
    flags = [reason is None or on_stop.action(reason) is not action for reason in generated.reasons]
    return Column(np.array(flags, dtype=np.int8))
