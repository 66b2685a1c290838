"""Into how many parts a decoder can be cut: the arithmetic that rules and the planner share.

Pure. A tensor rank has whole heads of queries, of keys and of values, and as many columns of the
feed-forward layer as the others; a pipeline stage has as many layers as the others. The vocabulary
is padded, so it need not come out even.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Protocol

from rlhf_api.rules import Violation


class Dimensions(Protocol):
    """What of a decoder's shape is cut."""

    @property
    def num_layers(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...


def uneven_tensor(shape: Dimensions, tensor: int) -> Iterator[Violation]:
    """What so many tensor ranks cannot share evenly, with the arithmetic; the first such only."""
    counts = {
        "attention heads": shape.num_attention_heads,
        "key and value heads": shape.num_key_value_heads,
        "columns of the feed-forward layer": shape.intermediate_size,
    }
    for what, count in counts.items():
        if count % tensor:
            yield _uneven("tensor", tensor, count, what, divisors(gcd(*counts.values())))
            return


def uneven_pipeline(shape: Dimensions, pipeline: int) -> Iterator[Violation]:
    """That so many pipeline stages cannot share the layers evenly, with the arithmetic."""
    layers = shape.num_layers
    if layers % pipeline:
        yield _uneven("pipeline", pipeline, layers, "layers", divisors(layers))


def divisors(number: int) -> str:
    """All divisors of a number, for people."""
    return ", ".join(str(each) for each in range(1, 1 + number) if number % each == 0)


def _uneven(field: str, parts: int, count: int, what: str, allowed: str) -> Violation:
    return Violation(
        got=f"{field} {parts}, and {count} {what} / {parts} = {count / parts:.4g}",
        at=("training", "parallelism", field),
        allowed=f"{allowed} for this model",
    )
