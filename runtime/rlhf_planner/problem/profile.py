"""Profiles: times of the layers of some models, measured on one kind of device.

`rlhf profile` writes a profile (rlhf_runtime.profiling), `MeasuredLayers` reads it. It is a JSON
file. Times are curves: functions of one number, piecewise linear, never falling.
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
    """Seconds as a function of a count, never below 0. It is linear between points; beyond the
    first and the last point the slope of the nearest segment continues."""

    at: Annotated[tuple[Number, ...], Field(min_length=2)]
    """Counts of tokens, pairs, sequences or parameters, ascending."""
    seconds: Annotated[tuple[Number, ...], Field(min_length=2)]
    """Measured seconds at these counts, not falling."""

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
        """Seconds at a count."""
        points, seconds = self.at, self.seconds
        # The segment around the count, or the nearest one beyond the ends.
        after = min(max(bisect_left(points, at), 1), len(points) - 1)
        left, low = points[after - 1], seconds[after - 1]
        slope = (seconds[after] - low) / (points[after] - left)
        return max(0.0, low + (at - left) * slope)


def curve_of(samples: Iterable[tuple[float, float]]) -> Curve:
    """Fit a curve to measurements.

    Args:
        samples: at least one count, not below 0, with its seconds; negative seconds count as 0.
    """
    # Disturbances only make a measurement longer. So the minimum of each count is used, and none
    # may exceed that of a later count. A single count gives a constant.
    minimums: dict[float, float] = {}
    for at, seconds in samples:
        minimums[at] = min(seconds, minimums.get(at, seconds))
    points = sorted(minimums)
    values: list[float] = []
    for at in reversed(points):
        values.append(min([max(0.0, minimums[at]), *values[-1:]]))
    if len(points) == 1:
        (only,) = points
        return Curve(at=(0.0, only) if only > 0 else (0.0, 1.0), seconds=(values[0], values[0]))
    return Curve(at=tuple(points), seconds=tuple(reversed(values)))


class BlockCurves(Contract):
    """Seconds of a block: the sum of a curve of tokens and one of attention pairs."""

    tokens: Curve
    """By tokens, without pairs."""
    pairs: Curve
    """By attention pairs (query, key), from 0."""

    def __call__(self, tokens: float, pairs: float) -> float:
        """The sum of both curves."""
        return self.tokens(tokens) + self.pairs(pairs)


def block_curves(samples: Iterable[tuple[float, float, float]]) -> BlockCurves:
    """Fit a block's curves to measurements.

    One number of tokens should occur with different numbers of pairs; otherwise pairs add nothing.

    Args:
        samples: tokens, pairs and seconds; at least one.
    """
    rows = list(samples)
    by_tokens: dict[float, list[tuple[float, float]]] = {}
    for tokens, pairs, seconds in rows:
        by_tokens.setdefault(tokens, []).append((pairs, seconds))

    def num_pairs(tokens: float) -> int:
        return len({pairs for pairs, _ in by_tokens[tokens]})

    # The number of tokens with the most measurements of pairs determines their curve: there only
    # pairs differ. The curve is then subtracted from all measurements.
    densest = max(by_tokens, key=lambda tokens: (num_pairs(tokens), tokens))
    attention = _pairs_curve(curve_of(by_tokens[densest]))
    return BlockCurves(
        tokens=curve_of((tokens, seconds - attention(count)) for tokens, count, seconds in rows),
        pairs=attention,
    )


def _pairs_curve(measured: Curve) -> Curve:
    """The curve extended to 0 pairs, with 0 seconds there."""
    # Below the fewest pairs the slope of the first segment continues. Seconds at 0 pairs belong to
    # the curve of tokens.
    (first, second, *_), (low, high, *_) = measured.at, measured.seconds
    none = low - first * (high - low) / (second - first)
    more = [max(0.0, seconds - none) for seconds in measured.seconds]
    if first == 0:
        return Curve(at=measured.at, seconds=tuple(more))
    return Curve(at=(0.0, *measured.at), seconds=(0.0, *more))


# The version rises when an older reader would misunderstand the file.
PROFILE_VERSION: Literal[1] = 1
# By default this replaces a manifest's extension.
PROFILE_SUFFIX = ".profile.json"


class BlockShape(Contract):
    """The dimensions of a model that determine the times of its layers."""

    # The number of layers is left out: a profile of one model serves all with such blocks. The part
    # of a tensor group is measured as a model of that part's widths: fewer heads, a narrower
    # feed-forward layer, fewer rows of the vocabulary.
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
        """The dimensions of a decoder."""
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
    """By tokens, with the one-time work of a pass: masks, positions."""
    head: Curve
    """By predicted tokens."""


class TrainingCurves(Contract):
    """Seconds of training and inference."""

    forward: PassCurves
    """Without gradients."""
    backward: PassCurves
    """Time of training beyond `forward`, including what keeping activations adds to the forward
    pass."""
    recomputed: PassCurves
    """The same with recomputed activations."""
    optimizer: Curve
    """By parameters: clipping and AdamW's step."""


class GenerationCurves(Contract):
    """Seconds of a generation engine on one rank of a group, without communication."""

    prefill: BlockCurves
    """Seconds of a block, for prompts."""
    embedding: Curve
    """By tokens of prompts: the time of a pass over prompts beyond its blocks and `step`."""
    sequences: Curve
    """Seconds of a block, by sequences with one new token each."""
    cached: Curve
    """Seconds of a block, by tokens in the cache of all sequences."""
    step: Curve
    """By sequences: the time of a decoding step beyond its blocks: embedding, logits, sampling and
    the work on the host."""


class ModelProfile(Contract):
    """A model's layers."""

    name: Text
    """The roles for which it was measured."""
    shape: BlockShape
    """Shape of the uncut model."""
    precision: Precision
    """Number format of the computation: Float32 or BFloat16."""
    tensor: Count = 1
    """Ranks that share a layer; times are those of one of them."""
    training: TrainingCurves | None = None
    """None: not measured."""
    generation: GenerationCurves | None = None
    """None: not measured."""


class Measured(Contract):
    """The device and software of a profile."""

    device: Device
    """CPU or GPU."""
    name: Text
    """Name of the processor or GPU."""
    ranks: Count
    """Ranks that computed at the same time on the machine."""
    threads: Count
    """Threads of each."""
    torch: Text
    """Version of PyTorch."""
    vllm: Text | None = None
    """Version of vLLM; None if generation was not measured."""


class Constants(Contract):
    """Measured constants that replace fields of `Hardware`. None: not measured, as a link of a
    single rank."""

    memory_bytes_per_second: PositiveFloat
    """Read and written, both counted, by simple kernels."""
    engine_step_seconds: Annotated[float, Field(ge=0)] | None = None
    """Minimum time of a decoding step beyond its blocks."""
    link_bytes_per_second: PositiveFloat | None = None
    """Bytes that each rank receives per second in large collectives."""
    collective_seconds: Annotated[float, Field(ge=0)] | None = None
    """Seconds of a small collective."""


class Profile(Contract):
    """A profile of one kind of device."""

    version: Literal[1] = PROFILE_VERSION
    measured: Measured
    constants: Constants
    models: tuple[ModelProfile, ...]

    def to_json(self) -> str:
        """The text of its file."""
        return self.model_dump_json(by_alias=True, indent=1, exclude_none=True) + "\n"


def read_profile(file: Path) -> Profile:
    """Read a profile from its file.

    Raises:
        ProfileUnusable: no such file, not a profile, or another version.
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


def default_path(manifest: Path) -> Path:
    """The profile next to a manifest: job.yaml has job.profile.json."""
    return manifest.with_name(manifest.stem + PROFILE_SUFFIX)
