"""Which responses share a sequence with their prompt: pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Rows
from rlhf_sizing.costs import SequenceCost
from rlhf_sizing.limits import MAX_SHARED_TOKENS


def group_into_sequences(
    rows: Rows,
    prompt_lengths: NDArray[np.int32],
    response_lengths: NDArray[np.int32],
    groups: NDArray[np.int64],
    cost: SequenceCost,
    max_tokens: int,
) -> list[Rows]:
    """Rows of a group put together as long as that is cheaper than computing the prompt again, if
    the mask that they then need does not cost more than all that they save.

    `rows` of one group need not be neighbours; within a sequence they keep their order.

    Args:
        rows: to put into sequences.
        prompt_lengths: tokens of every row's prompt.
        response_lengths: tokens of every row's response.
        groups: rows of the same number have the same prompt.
        cost: of a sequence of the model, on its device.
        max_tokens: longest sequence with several responses, as far as `MAX_SHARED_TOKENS` allows.
    """
    longest = min(MAX_SHARED_TOKENS, max_tokens)
    ordered = rows[np.argsort(groups[rows], kind="stable")]
    sequences: list[list[int]] = []
    group = length = -1
    for row in ordered.tolist():
        prompt, response = int(prompt_lengths[row]), int(response_lengths[row])
        joined = cost.shared(length + response) - cost.shared(length)
        is_cheaper = joined < cost.alone(prompt + response)
        if groups[row] == group and is_cheaper and length + response <= longest:
            sequences[-1].append(row)
            length += response
        else:
            sequences.append([row])
            group, length = int(groups[row]), prompt + response
    found: list[Rows] = []
    for members in sequences:
        prompt, of_each = int(prompt_lengths[members[0]]), response_lengths[members].tolist()
        alone = sum(cost.alone(prompt + response) for response in of_each)
        together = cost.shared(prompt + sum(of_each)) < alone
        parts = [members] if together else [[row] for row in members]
        found.extend(np.asarray(part, dtype=np.int64) for part in parts)
    return found
