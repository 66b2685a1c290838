"""Subject: a model to measure, and the parts of it that are built. Reads config.json; no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_api.spec.models import Precision
from rlhf_planner.memory.generation import key_value_heads_per_rank
from rlhf_planner.memory.megatron import vocabulary_rows
from rlhf_planner.problem.profile import BlockShape
from rlhf_runtime.models.folder import CONFIG_FILE
from rlhf_sizing.shape import DecoderShape

# Maximum number of measured layers. Several are needed: otherwise the weights of a layer would
# still be in the caches when it runs again.
MAX_LAYERS = 3
# Approximate limit of the state of those layers.
MODEL_BYTES = 4 << 30
# Maximum parameters of a small block, and the number of such blocks that are measured. A small
# block takes less time than the rest of a decoding step: it takes more of them to see their time.
SMALL_BLOCK, SMALL_LAYERS = 1 << 20, 9


@dataclass(frozen=True)
class Subject:
    """A model whose layers are to be measured. Picklable."""

    name: str
    """Its roles."""
    folder: Path
    """Folder of its config.json; no weights are read."""
    shape: DecoderShape
    precision: Precision
    tensor: int
    """Ranks that share a layer."""
    computes: bool
    """True: measure training and forward passes."""
    generates: bool
    micro_batch_tokens: int
    """Maximum tokens of a pass."""
    max_sequences: int
    """Maximum sequences of a decoding step."""
    max_positions: int
    """Longest sequence of the model."""

    @property
    def key(self) -> tuple[BlockShape, Precision, int]:
        """The properties that determine its times."""
        return BlockShape.of(self.shape), self.precision, self.tensor

    @property
    def title(self) -> str:
        """Name and shape, in words."""
        part = f", one of {self.tensor} parts" if self.tensor > 1 else ""
        return f"{self.name} ({BlockShape.of(self.shape)}{part})"


def merged(subjects: Iterable[Subject]) -> tuple[Subject, ...]:
    """Merge subjects with equal keys; the result covers the needs of all."""
    by_key: dict[tuple[BlockShape, Precision, int], Subject] = {}
    for subject in subjects:
        other = by_key.get(subject.key)
        by_key[subject.key] = subject if other is None else _both(other, subject)
    return tuple(by_key.values())


def _both(one: Subject, other: Subject) -> Subject:
    names = dict.fromkeys([*one.name.split(", "), *other.name.split(", ")])
    return replace(
        one,
        name=", ".join(names),
        computes=one.computes or other.computes,
        generates=one.generates or other.generates,
        micro_batch_tokens=max(one.micro_batch_tokens, other.micro_batch_tokens),
        max_sequences=max(one.max_sequences, other.max_sequences),
    )


def write_part(subject: Subject, num_layers: int, folder: Path) -> Path:
    """Write the config of one rank's part of a model with `num_layers` layers."""
    config: dict[str, Any] = json.loads((subject.folder / CONFIG_FILE).read_text(encoding="utf-8"))
    folder.mkdir(parents=True)
    changed = config | rank_config(config, subject.shape, subject.tensor, num_layers)
    (folder / CONFIG_FILE).write_text(json.dumps(changed), encoding="utf-8")
    return folder


def rank_config(
    config: Mapping[str, Any], shape: DecoderShape, tensor: int, num_layers: int
) -> dict[str, Any]:
    """The changes of the config for one rank's part: fewer and narrower layers."""
    changes: dict[str, Any] = {"num_hidden_layers": num_layers}
    if isinstance(config.get("layer_types"), list):
        types = config["layer_types"]
        changes["layer_types"] = [types[layer % len(types)] for layer in range(num_layers)]
    if tensor > 1:
        changes |= {
            "num_attention_heads": -(-shape.num_attention_heads // tensor),
            "num_key_value_heads": key_value_heads_per_rank(shape, tensor),
            "head_dim": shape.head_dim,
            "intermediate_size": -(-shape.intermediate_size // tensor),
            "vocab_size": int(vocabulary_rows(shape, tensor)),
            **{
                f"{name}_token_id": None for name in ("bos", "eos", "pad")
            },  # they may exceed the part's vocabulary
        }
    return changes


def training_layers(subject: Subject) -> int:
    """Number of layers that are built to measure passes."""
    state = 16 * subject.shape.block_parameters // subject.tensor  # weights, gradients, moments
    return max(1, min(MAX_LAYERS, subject.shape.num_layers, MODEL_BYTES // state))


def generation_layers(subject: Subject) -> int:
    """Number of layers of the deeper of two engines, whose difference gives the time of blocks."""
    own = subject.shape.block_parameters // subject.tensor
    return SMALL_LAYERS if own <= SMALL_BLOCK else max(2, training_layers(subject))
