"""Which responses share a sequence with their prompt: pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_flow.planning.role_models import MAX_SHARED_TOKENS
from rlhf_runtime.dataplane.columns import Rows


def group_into_sequences(
    rows: Rows,
    prompt_lengths: NDArray[np.int32],
    response_lengths: NDArray[np.int32],
    groups: NDArray[np.int64],
    hidden_size: int,
    max_tokens: int,
) -> list[Rows]:
    """Rows of a group put together as long as that is cheaper than computing the prompt again.

    Per layer a token costs about 24 h^2 operations of its own, h the hidden size, and 4 h for every
    token it is compared with: with a mask all of the sequence, without one the earlier half. So a
    sequence of length l costs l + l^2 / (6 h) with a mask and l + l^2 / (12 h) without, in units of
    24 h^2. `rows` of one group need not be neighbours; within a sequence they keep their order.

    Args:
        rows: to put into sequences.
        prompt_lengths: tokens of every row's prompt.
        response_lengths: tokens of every row's response.
        groups: rows of the same number have the same prompt.
        hidden_size: width of the model.
        max_tokens: longest sequence with several responses, as far as `MAX_SHARED_TOKENS` allows.
    """
    longest = min(MAX_SHARED_TOKENS, max_tokens)
    ordered = rows[np.argsort(groups[rows], kind="stable")]
    sequences: list[list[int]] = []
    group = length = -1
    for row in ordered.tolist():
        prompt, response = int(prompt_lengths[row]), int(response_lengths[row])
        joined = response + ((length + response) ** 2 - length**2) / (6 * hidden_size)
        alone = prompt + response + (prompt + response) ** 2 / (12 * hidden_size)
        if groups[row] == group and joined < alone and length + response <= longest:
            sequences[-1].append(row)
            length += response
        else:
            sequences.append([row])
            group, length = int(groups[row]), prompt + response
    return [np.asarray(members, dtype=np.int64) for members in sequences]
