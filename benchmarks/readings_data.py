"""Public readings of times: readings.toml, read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlhf_planner.problem.model_shapes import WELL_KNOWN_MODELS
from rlhf_sizing.shape import DecoderShape

FILE = Path(__file__).with_name("readings.toml")


class Kind(StrEnum):
    """Part of a step that a reading is about."""

    DECODE = "decode"
    GENERATE = "generate"
    TRAIN = "train"
    INFER = "infer"
    WEIGHTS = "weights"
    STEP = "step"


class Parameter(StrEnum):
    """A parameter of the time model that rests on readings."""

    STEP = "step"
    """Seconds of an engine's step on the host."""
    SEQUENCE = "sequence"
    """The same for each sequence."""
    TENSOR = "tensor"
    """Seconds for each tensor that moves."""


RATE = "tokens/s/GPU"
"""Unit of figures that are better the larger they are."""
UNITS: Mapping[Kind, str] = {**dict.fromkeys(Kind, "s"), Kind.DECODE: "ms"}


@dataclass(frozen=True)
class Reading:
    """A published figure, and the settings of its run; readings.toml describes the fields."""

    name: str
    kind: Kind
    figure: float
    source: str
    gpu: str
    parameter: Parameter | None = None
    """The parameter that rests on it. None: it tests the model."""
    unit: str = ""
    commit: str = ""
    """Commit of a source in a repository."""
    assumed: str = ""
    unexplained: str = ""
    """What is known of a ratio above 1.25 or below 0.8; empty for closer ones."""
    model: str = ""
    shape: Mapping[str, Any] | None = None
    """Dimensions of a model without a name."""
    memory_gigabytes_per_second: float | None = None
    """Bandwidth of the device's memory, if not the preset's."""
    clock: float = 1.0
    """Share of the preset's FLOP/s."""
    devices_per_node: int = 8
    # Engines.
    vllm: str = ""
    engines: int = 1
    tensor: int = 1
    sequences: int = 1
    decodes_text: bool = False
    """True if the engine's process makes texts of all tokens; this runtime's never does."""
    at_once: int = 256
    cache_gib: float = 52.0
    # Data.
    prompts: int = 1
    samples: int = 1
    rows: int = 0
    prompt: float = 1.0
    response: float = 1.0
    longest: int | None = None
    # Training.
    engine: str = "Megatron"
    gpus: int = 0
    rows_per_gpu: int = 0
    tokens: int = 0
    data: int = 1
    train_tensor: int = 1
    pipeline: int = 1
    recompute: float = 0.0
    """Share of the blocks whose forward pass is computed again."""
    updates: int = 1
    micro_batch_tokens: int = 0
    infer_tokens: int = 0
    forward_calls: int = 0
    scores_prompts: bool = False
    """True if the head computes logits of prompts, too; this runtime's never does."""
    pads_stages: bool = False
    """True if micro-batches are padded to their limit, as stages of the source need them equal."""

    @property
    def decoder(self) -> DecoderShape:
        """Dimensions of its model."""
        if self.shape is not None:
            return DecoderShape(**self.shape, family="llama")
        return WELL_KNOWN_MODELS[self.model]

    @property
    def shown_unit(self) -> str:
        """Unit of its figure."""
        return self.unit or UNITS[self.kind]

    def ratio(self, ours: float) -> float:
        """Our time relative to theirs: above 1 if we expect more time than they measured."""
        return self.figure / ours if self.unit == RATE else ours / self.figure


def read_readings() -> list[Reading]:
    """All readings, in the order of the file.

    Raises:
        TypeError: a field that is none of `Reading`.
        ValueError: an unknown kind or parameter.
    """
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["reading"]
    return [_reading(entry) for entry in entries]


def _reading(entry: dict[str, Any]) -> Reading:
    parameter = entry.get("parameter")
    named = {
        "kind": Kind(entry["kind"]),
        "parameter": None if parameter is None else Parameter(parameter),
    }
    return Reading(**{**entry, **named})
