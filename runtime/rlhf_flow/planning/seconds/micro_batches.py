"""A replica's share of a batch, as the runtime cuts it into sequences and micro-batches.

Rows. Replicas get equally many rows, that with most of them counts. Rows of a prompt share it in
one sequence while that is cheaper (docs/adr/0006-responses-share-their-prompt.md): l tokens of a
sequence cost l + c l^2 / (6 h) with a mask, c of the device, and l + l^2 / (12 h) without. The rule
of the runtime's `group_into_sequences` is applied to mean lengths.

Padding. Sequences are sorted by length, a micro-batch is padded to its longest, and holds as many
as fit: if all are equal whole ones, else half of one is left free on average. With M padded tokens
that it then has, and s sequences of l tokens on average, of which the longest has x more, m
micro-batches hold about

    P = s l + s x / m  padded tokens, and m M = P, so that
    m = ( s l + sqrt((s l)^2 + 4 M s x) ) / (2 M)

but at least one; a sequence longer than M is alone. s x / m is exact for one micro-batch, and for
more of them where lengths are spread evenly.

Pairs. Attention computes l^2 / 2 of them for a sequence with plain causal order, l^2 with a mask,
each of which counts c times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.seconds.lengths import Lengths
from rlhf_flow.planning.sequence_cost import MASKED_COST, SequenceCost


@dataclass(frozen=True)
class Batch:
    """What a call is given, over all of its ranks."""

    rows: int
    """Prompts with a response each."""
    prompt: Lengths
    response: Lengths
    rows_per_prompt: int = 1
    """Responses to each prompt."""


class MicroBatches(NamedTuple):
    """What a replica runs for one update, in equal parts."""

    number: int
    tokens: float
    """Of each, padding included."""
    pairs: float
    """Of tokens of each of which one looks at the other, in those that plain causal order computes
    in the same time."""
    predicted: float
    """Response tokens of each."""


@lru_cache(maxsize=16384)
def micro_batches(
    batch: Batch,
    updates: int,
    data: int,
    micro_batch_tokens: int,
    longest_shared_tokens: int,
    cost: SequenceCost,
) -> MicroBatches:
    """The micro-batches of the replica that has most of them.

    Args:
        batch: of a call.
        updates: parts of it, each for an optimizer step.
        data: replicas.
        micro_batch_tokens: padded tokens at once.
        longest_shared_tokens: of a sequence with several responses; 0 where none is shared.
        cost: of a sequence of the model.
    """
    rows = -(-batch.rows // (updates * data))
    together = min(batch.rows_per_prompt, rows)
    joined = responses_per_sequence(
        batch.prompt.mean,
        batch.response.mean,
        together,
        cost,
        longest_shared_tokens,
    )
    sequences = rows / joined
    prompt, response = batch.prompt, batch.response
    mean = prompt.mean + joined * response.mean
    square = mean**2 + prompt.variance + joined * response.variance
    longer = math.hypot(
        prompt.expected_maximum(sequences) - prompt.mean,
        math.sqrt(joined) * (response.expected_maximum(sequences) - response.mean),
    )
    real = sequences * mean
    is_equal = square == mean**2
    most = _filled(micro_batch_tokens, mean, is_equal=is_equal)
    number = (real + math.sqrt(real**2 + 4 * most * sequences * longer)) / (2 * most)
    padded = real + sequences * longer / max(1.0, number)
    count = max(1, math.ceil(number - 1e-9))
    seen = cost.masked_cost * square if joined > 1 else square / 2
    return MicroBatches(
        count,
        padded / count,
        sequences * seen * padded / real / count,
        rows * response.mean / count,
    )


def replica_micro_batches(batch: Batch, model: RoleModel, updates: int = 1) -> MicroBatches:
    """The same for a role."""
    return micro_batches(
        batch,
        updates,
        model.mesh.data,
        model.micro_batch_tokens,
        model.longest_shared_tokens,
        SequenceCost(model.shape.hidden_size, MASKED_COST[model.device]),
    )


def _filled(limit: int, mean: float, *, is_equal: bool) -> float:
    """Padded tokens of a micro-batch that is full."""
    return max(mean, limit // mean * mean if is_equal else limit - mean / 2)


@lru_cache(maxsize=4096)
def responses_per_sequence(
    prompt: float, response: float, rows_per_prompt: int, cost: SequenceCost, longest: int
) -> float:
    """Responses that share a prompt, on average over the sequences of a prompt.

    Args:
        prompt: its tokens.
        response: tokens of each.
        rows_per_prompt: responses to it.
        cost: of a sequence of the model.
        longest: tokens of a sequence with several responses, at most.
    """
    length, joined = prompt + response, 1
    alone = cost.alone(length)
    while joined < rows_per_prompt and length + response <= longest:
        if cost.shared(length + response) - cost.shared(length) >= alone:
            break
        length += response
        joined += 1

    def sequences(rows: int) -> int:
        """Of so many responses that may share one."""
        together = cost.shared(prompt + rows * response) < rows * alone
        return 1 if rows and together else rows

    whole, rest = divmod(rows_per_prompt, joined)
    return rows_per_prompt / (whole * sequences(joined) + sequences(rest))
