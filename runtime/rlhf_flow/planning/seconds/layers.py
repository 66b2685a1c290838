"""What a layer takes on one rank: the seam between the time model and where its numbers come from.

Two things implement it: `AnalyticLayers`, from data sheets, and measured profiles. It is all that
the rest asks of a device's computation, so that a profile has to measure three kinds of layers in
five ways, over tokens and sizes of tensor groups.

Source of the choice of kinds: ReaL (arXiv 2406.14088), its profiler-assisted estimator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol


class LayerKind(StrEnum):
    """The kinds of layers of a decoder."""

    EMBEDDING = "embedding"
    """Tokens to vectors."""
    BLOCK = "block"
    """Attention and feed-forward, with their norms."""
    HEAD = "head"
    """The output projection and what is made of its logits. A head of one number for each token
    takes nothing beside a block, and is left out."""


class LayerCut(NamedTuple):
    """How a layer is cut over ranks."""

    tensor: int = 1
    """Ranks that share it."""
    sequence_parallel: bool = False
    """Whether they share the tokens, too, where the layer is not cut."""


WHOLE = LayerCut()


class LayerTime(NamedTuple):
    """Seconds of a layer on a rank, without communication; their sum is what it takes.

    A measured profile, which cannot tell them apart, puts all into the one that is likely.
    """

    compute: float = 0.0
    """Limited by FLOP/s."""
    memory: float = 0.0
    """Limited by the memory's bandwidth."""
    launch: float = 0.0
    """The device waits for the host."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.memory + self.launch

    def plus(self, other: LayerTime, times: float = 1.0) -> LayerTime:
        """Both, the other so many times."""
        return LayerTime(
            self.compute + other.compute * times,
            self.memory + other.memory * times,
            self.launch + other.launch * times,
        )


NOTHING = LayerTime()


class LayerSeconds(Protocol):
    """What layers of one model take on one kind of device, in one number format.

    Equal only to itself or to what gives equal answers: estimates are cached by it.
    """

    def __hash__(self) -> int:
        """As of what it is equal to."""

    def forward(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """A forward pass of training or inference.

        Args:
            kind: of layer.
            cut: how it is cut.
            tokens: that run through it at once, padding included; for the head those that are
                predicted.
            pairs: of tokens of which one looks at the other, that attention computes.
        """

    def backward(
        self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float, recompute: bool
    ) -> LayerTime:
        """The backward pass; with `recompute` after another forward pass. Arguments as above."""

    def optimizer(self, num_parameters: float) -> float:
        """Clipping and one AdamW step of so many float32 parameters on a rank: seconds."""

    def prefill(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """A generation engine's pass over prompts. Arguments as above."""

    def decode(
        self, kind: LayerKind, cut: LayerCut, sequences: float, cached_tokens: float
    ) -> LayerTime:
        """A generation engine's pass over the last token of each sequence; of the head with
        sampling.

        Args:
            kind: of layer.
            cut: how it is cut.
            sequences: that are under way.
            cached_tokens: of all of them together.
        """
