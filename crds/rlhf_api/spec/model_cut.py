"""Even division of a decoder among tensor ranks and pipeline stages, for rules and the planner.

Pure. Every tensor rank has the same number of complete query, key and value heads, and of columns
of the feed-forward layer; every pipeline stage has the same number of layers. The vocabulary is
padded, so it need not divide evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Protocol

from rlhf_api.rules import Violation


class Dimensions(Protocol):
    """The dimensions of a decoder that are divided."""

    @property
    def num_layers(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...


def uneven_tensor(shape: Dimensions, tensor: int) -> Iterator[Violation]:
    """Yield the first dimension that this number of tensor ranks does not divide."""
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
    """Yield a violation if this number of pipeline stages does not divide the layers."""
    layers = shape.num_layers
    if layers % pipeline:
        yield _uneven("pipeline", pipeline, layers, "layers", divisors(layers))


def divisors(number: int) -> str:
    """All divisors of a number, as text."""
    return ", ".join(str(factor) for factor in range(1, 1 + number) if number % factor == 0)


def _uneven(field: str, parts: int, count: int, what: str, allowed: str) -> Violation:
    return Violation(
        got=f"{field} {parts}, and {count} {what} / {parts} = {count / parts:.4g}",
        at=("training", "parallelism", field),
        allowed=f"{allowed} for this model",
    )
