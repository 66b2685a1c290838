"""Measured seconds as functions of one number: piecewise linear, never falling.

Profile: what layers of some models take on one kind of device, measured there.

`rlhf profile` writes it (rlhf_runtime.profiling), `MeasuredLayers` answers from it. A file of JSON,
whose version rises when an older reader would misunderstand it.

What a block takes depends on its widths, not on how many of them a model has, so that a profile of
one model serves all with such blocks. A tensor group's part is measured as a model of that part's
widths: fewer heads, a narrower feed-forward layer, fewer rows of the vocabulary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rlhf_api.base import Contract, Count, PositiveFloat, Text
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import ProfileUnusable
from rlhf_sizing.shape import DecoderShape

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Curve(Contract):
    """Seconds by something that is counted. Between two points it is linear, beyond the first and
    the last it goes on with the slope of the segment there, and never below 0."""

    at: Annotated[tuple[Number, ...], Field(min_length=2)]
    """What was counted: tokens, pairs, sequences or parameters, rising."""
    seconds: Annotated[tuple[Number, ...], Field(min_length=2)]
    """What was measured there, not falling."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if len(self.at) != len(self.seconds):
            raise ValueError(f"{len(self.at)} points with {len(self.seconds)} seconds")
        if any(low >= high for low, high in pairwise(self.at)):
            raise ValueError("points do not rise")
        if any(low > high for low, high in pairwise(self.seconds)):
            raise ValueError("seconds fall")
        return self

    def __call__(self, at: float) -> float:
        """Seconds there."""
        points, seconds = self.at, self.seconds
        after = min(max(bisect_left(points, at), 1), len(points) - 1)
        left, low = points[after - 1], seconds[after - 1]
        slope = (seconds[after] - low) / (points[after] - left)
        return max(0.0, low + (at - left) * slope)


def curve_of(samples: Iterable[tuple[float, float]]) -> Curve:
    """The curve of what was measured.

    Whatever disturbs a measurement makes it longer. So of several measurements of one point the
    least counts, and none is longer than that of a later point. What was measured at a single point
    is taken to hold everywhere.

    Args:
        samples: what was counted, not below 0, and seconds, of which those below 0 count as 0; at
            least one.
    """
    least: dict[float, float] = {}
    for at, seconds in samples:
        least[at] = min(seconds, least.get(at, seconds))
    points = sorted(least)
    values: list[float] = []
    for at in reversed(points):
        values.append(min([max(0.0, least[at]), *values[-1:]]))
    if len(points) == 1:
        (only,) = points
        return Curve(at=(0.0, only) if only > 0 else (0.0, 1.0), seconds=(values[0], values[0]))
    return Curve(at=tuple(points), seconds=tuple(reversed(values)))


class BlockCurves(Contract):
    """Seconds of a block: for its tokens, and for pairs of them in attention; their sum counts."""

    tokens: Curve
    """By tokens, with pairs taken out."""
    pairs: Curve
    """By pairs of tokens of which one looks at the other, from 0."""

    def __call__(self, tokens: float, pairs: float) -> float:
        """Seconds of both."""
        return self.tokens(tokens) + self.pairs(pairs)


def block_curves(samples: Iterable[tuple[float, float, float]]) -> BlockCurves:
    """A block's curves from measurements, among which one number of tokens should occur with
    different numbers of pairs; where none does, pairs take nothing beyond what tokens take.

    With n tokens, the number that has most of them, seconds grow by what pairs take; from the
    fewest pairs down to none they are taken to fall as they rise from there to the next more. What
    pairs take is then subtracted from all measurements.

    Args:
        samples: tokens, pairs and seconds; at least one.
    """
    rows = list(samples)
    by_tokens: dict[float, list[tuple[float, float]]] = {}
    for tokens, pairs, seconds in rows:
        by_tokens.setdefault(tokens, []).append((pairs, seconds))

    def num_pairs(tokens: float) -> int:
        return len({pairs for pairs, _ in by_tokens[tokens]})

    most = max(by_tokens, key=lambda tokens: (num_pairs(tokens), tokens))
    attention = _pairs_curve(curve_of(by_tokens[most]))
    return BlockCurves(
        tokens=curve_of((tokens, seconds - attention(count)) for tokens, count, seconds in rows),
        pairs=attention,
    )


def _pairs_curve(measured: Curve) -> Curve:
    """The same from 0 pairs on, where nothing is left."""
    (first, second, *_), (low, high, *_) = measured.at, measured.seconds
    none = low - first * (high - low) / (second - first)
    more = [max(0.0, seconds - none) for seconds in measured.seconds]
    if first == 0:
        return Curve(at=measured.at, seconds=tuple(more))
    return Curve(at=(0.0, *measured.at), seconds=(0.0, *more))


PROFILE_VERSION: Literal[1] = 1
PROFILE_SUFFIX = ".profile.json"
"""What stands in place of a manifest's ending, by default."""


class BlockShape(Contract):
    """What of a model determines the seconds of its layers."""

    hidden_size: Count
    intermediate_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    vocab_size: Count
    qkv_bias: bool
    query_key_norm: bool
    norms_per_layer: Count

    @classmethod
    def of(cls, shape: DecoderShape) -> Self:
        """Those of a model."""
        return cls(**{name: getattr(shape, name) for name in cls.model_fields})

    def __str__(self) -> str:
        return (
            f"{self.hidden_size} wide ({self.num_attention_heads} heads of {self.head_dim}, "
            f"{self.num_key_value_heads} of keys, feed-forward {self.intermediate_size}, "
            f"vocabulary {self.vocab_size})"
        )


class PassCurves(Contract):
    """Seconds of a pass, by kind of layer."""

    block: BlockCurves
    embedding: Curve
    """By tokens, with what a pass does once: masks, positions."""
    head: Curve
    """By predicted tokens."""


class TrainingCurves(Contract):
    """Seconds of training and inference."""

    forward: PassCurves
    """Without gradients."""
    backward: PassCurves
    """All that training takes beyond `forward`: what keeping activations adds to the forward pass
    counts here."""
    recomputed: PassCurves
    """The same where activations are computed again."""
    optimizer: Curve
    """By parameters: clipping and AdamW's step."""


class GenerationCurves(Contract):
    """Seconds of a generation engine on one rank of a group, without communication."""

    prefill: BlockCurves
    """Of a block, for prompts."""
    embedding: Curve
    """By tokens of prompts: what a pass over prompts takes beyond its blocks and `step`."""
    sequences: Curve
    """Of a block, by sequences of which it computes one token each."""
    cached: Curve
    """Of a block, by tokens in the cache of all sequences."""
    step: Curve
    """By sequences: what a decoding step takes beyond its blocks: embedding, logits, sampling and
    the work on the host."""


class ModelProfile(Contract):
    """A model's layers."""

    name: Text
    """The roles for which it was measured."""
    shape: BlockShape
    """Of the whole model."""
    precision: Precision
    """Number format of the computation: Float32 or BFloat16."""
    tensor: Count = 1
    """Ranks that share a layer; seconds are those of one of them."""
    training: TrainingCurves | None = None
    """None: not measured."""
    generation: GenerationCurves | None = None
    """None: not measured."""


class Measured(Contract):
    """Where and by what a profile was measured."""

    device: Device
    """CPU or GPU."""
    name: Text
    """Of the processor or GPU."""
    ranks: Count
    """Ranks that computed at the same time on the machine."""
    threads: Count
    """Threads of each."""
    torch: Text
    """Version."""
    vllm: Text | None = None
    """Version; None where no generation was measured."""


class Constants(Contract):
    """What replaces fields of `Hardware`. None: not measured, as a link of a single rank."""

    memory_bytes_per_second: PositiveFloat
    """Read and written, both counted, by simple kernels."""
    engine_step_seconds: Annotated[float, Field(ge=0)] | None = None
    """The least that a decoding step takes beyond its blocks."""
    link_bytes_per_second: PositiveFloat | None = None
    """Received by each rank in large collectives."""
    collective_seconds: Annotated[float, Field(ge=0)] | None = None
    """What a small collective takes."""


class Profile(Contract):
    """What was measured on one kind of device."""

    version: Literal[1] = PROFILE_VERSION
    measured: Measured
    constants: Constants
    models: tuple[ModelProfile, ...]

    def to_json(self) -> str:
        """As it is kept in a file."""
        return self.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n"


def read_profile(file: Path) -> Profile:
    """The profile in a file.

    Raises:
        ProfileUnusable: no such file, or something else in it, or another version.
    """
    again = "measure again with `rlhf profile FILE`"
    try:
        return Profile.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileUnusable(
            f"a profile cannot be read: got {file} ({error.strerror}), allowed what `rlhf profile` "
            f"has written; correct the path, or {again}"
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        problem = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
        raise ProfileUnusable(
            f"not a profile of this version: got {file} ({problem}), allowed version "
            f"{PROFILE_VERSION}; {again}"
        ) from error


def default_place(manifest: Path) -> Path:
    """Beside the manifest: job.yaml has job.profile.json."""
    return manifest.with_name(manifest.stem + PROFILE_SUFFIX)
