"""The response mask, which is read without being named.

Every loss and every built-in operation that is about single tokens of responses reads it of a batch
that has one. So the tokens that it leaves out count nowhere: in no loss, advantage or metric. A
function of the user's own gets it where it lists it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rlhf_flow.columns import ColumnSettings, Input, fixed_input
from rlhf_flow.fields import RESPONSE_MASK
from rlhf_flow.losses import Loss
from rlhf_flow.operations import Operation


def inputs_of(reader: Operation | Loss, available: Collection[str]) -> Iterator[Input]:
    """The columns that an operation or a loss takes of a batch.

    Args:
        reader: names its own columns.
        available: the batch's.
    """
    yield from reader.inputs()
    counts_tokens = isinstance(reader, ColumnSettings) and reader.counts_tokens
    if counts_tokens and RESPONSE_MASK in available:
        yield fixed_input(RESPONSE_MASK)


def reads_of(reader: Operation | Loss, available: Collection[str]) -> set[str]:
    """The names of these columns."""
    return {each.column for each in inputs_of(reader, available)}
