"""What a manifest's models ask to be measured. Pure but for reading config.json; no torch."""

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

MOST_LAYERS = 3
"""Of models that are measured: some, so that weights of one are out of the caches when it is used
again."""
MODEL_BYTES = 4 << 30
"""Of the state of those layers, about."""
SMALL_BLOCK, SMALL_LAYERS = 1 << 20, 9
"""Parameters of a block that takes less than what surrounds it in a decoding step; so many of them
tell it from that."""


@dataclass(frozen=True)
class Subject:
    """A model's layers that are to be measured; it goes to other processes."""

    name: str
    """The roles that have it."""
    folder: Path
    """With its config.json; no weights are read."""
    shape: DecoderShape
    precision: Precision
    tensor: int
    """Ranks that share a layer."""
    computes: bool
    """Whether it trains or runs forward."""
    generates: bool
    micro_batch_tokens: int
    """The most tokens of a pass."""
    max_sequences: int
    """The most sequences of a decoding step."""
    max_positions: int
    """The longest sequence that the model takes."""

    @property
    def key(self) -> tuple[BlockShape, Precision, int]:
        """What determines its seconds."""
        return BlockShape.of(self.shape), self.precision, self.tensor

    @property
    def title(self) -> str:
        """For people."""
        part = f", one of {self.tensor} parts" if self.tensor > 1 else ""
        return f"{self.name} ({BlockShape.of(self.shape)}{part})"


def merged(subjects: Iterable[Subject]) -> tuple[Subject, ...]:
    """Those that take equally long as one, with whatever any of them asks for."""
    by_key: dict[tuple[BlockShape, Precision, int], Subject] = {}
    for each in subjects:
        other = by_key.get(each.key)
        by_key[each.key] = each if other is None else _both(other, each)
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
    """A folder with the config of so many layers of one rank's part of a model."""
    config: dict[str, Any] = json.loads((subject.folder / CONFIG_FILE).read_text(encoding="utf-8"))
    folder.mkdir(parents=True)
    changed = config | part_of_config(config, subject.shape, subject.tensor, num_layers)
    (folder / CONFIG_FILE).write_text(json.dumps(changed), encoding="utf-8")
    return folder


def part_of_config(
    config: Mapping[str, Any], shape: DecoderShape, tensor: int, num_layers: int
) -> dict[str, Any]:
    """What is another in the config of one rank's part: fewer layers, narrower ones."""
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
            },  # they may lie beyond the part's rows
        }
    return changes


def training_layers(subject: Subject) -> int:
    """Layers of a model that are built to measure passes."""
    state = 16 * subject.shape.block_parameters // subject.tensor  # weights, gradients, moments
    return max(1, min(MOST_LAYERS, subject.shape.num_layers, MODEL_BYTES // state))


def generation_layers(subject: Subject) -> int:
    """Layers of the deeper of the two engines whose difference is what blocks take."""
    own = subject.shape.block_parameters // subject.tensor
    return SMALL_LAYERS if own <= SMALL_BLOCK else max(2, training_layers(subject))
