"""Ways to hold a model and its optimizer, for scenarios of checkpoints: FSDP2 on some ranks, and
Megatron's stages with a plain or a distributed optimizer."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

from rlhf_api.plan import OffloadDepth
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.megatron.layout import GetStorage
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.reshard.local_shards import LocalShards, local_shards
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import FlatShard, View

from ..engines.fsdp_ranks import settings
from .layout_cases import DISTRIBUTED, FSDP

MOMENTS = ("exp_avg", "exp_avg_sq")


def write_model(folder: Path) -> None:
    """Tied, with biases; groups of two queries; lengths that two and four, but not three divide;
    a vocabulary that is padded, and so large that both copies of the embedding are cut, each
    elsewhere, when two ranks share what a stage has."""
    config = Qwen2Config(
        vocab_size=601,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        dtype="float32",
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


class HeldByStage:
    """What Megatron's optimizers hold for a stage, as an engine's state."""

    offloaded = OffloadDepth.NOTHING

    def __init__(self, folder: Path, parallel: ParallelContext, distributed: bool) -> None:
        dtype = torch.bfloat16 if distributed else torch.float32
        self._stage = Stage(AutoConfig.from_pretrained(folder), parallel, dtype=dtype)
        self._parallel = parallel
        self._room = self._flat_room if distributed else self._plain_room
        self._weights: GetStorage = self._room() if distributed else lambda p: p.data
        self._moments: dict[str, GetStorage] = {}
        self._steps: dict[str, torch.Tensor] = {}
        self.version = self.updates = 0

    def state(self) -> dict[str, Any]:
        weights = self._shards(self._weights)
        moments = {kind: self._shards(storage) for kind, storage in self._moments.items()}
        adam = {
            name: {"step": self._steps[name]} | {kind: moments[kind][name] for kind in MOMENTS}
            for name in weights
            if name in self._steps
        }
        return {
            "weights": weights,
            "version": self.version,
            "optimizer": {"adam": adam, "updates": self.updates},
        }

    def expect_state(self, parameters: Collection[str]) -> None:
        self._moments = {kind: self._room() for kind in MOMENTS}
        self._steps = {name: torch.zeros(()) for name in parameters}

    def adopt(self, state: dict[str, Any]) -> None:
        self.version, self.updates = state["version"], state["optimizer"]["updates"]

    def _shards(self, storage: GetStorage) -> dict[str, LocalShards]:
        shapes, stage = self._stage.architecture.shapes(), self._stage
        return local_shards(stage.views(storage), shapes, self._parallel.rank, stage.copies)

    def _plain_room(self) -> GetStorage:
        return {p: torch.zeros(p.shape) for p in self._stage.parameters()}.get

    def _flat_room(self) -> GetStorage:
        """As Megatron cuts its buffers: all parameters end to end, in as many equal ranges as there
        are data ranks; ranks without a part of a parameter have nothing of it."""
        at, parameters = self._parallel.at, list(self._stage.parameters())
        size = -(-sum(p.numel() for p in parameters) // at.data_size)
        low, high, begin = at.data * size, (at.data + 1) * size, 0
        shards = {}
        for parameter in parameters:
            first, end = max(low, begin), min(high, begin + parameter.numel())
            if first < end:
                shards[parameter] = FlatShard(torch.zeros(end - first), first - begin)
            begin += parameter.numel()
        return shards.get


def hold(folder: Path, parallel: ParallelContext, kind: str) -> FsdpEngine | HeldByStage:
    """What this rank holds in a layout."""
    if kind != FSDP:
        return HeldByStage(folder, parallel, kind == DISTRIBUTED)
    engine = FsdpEngine(folder, parallel, torch.float32)
    engine.use_optimizer(settings())
    return engine


def parts_in(state: dict[str, Any]) -> dict[tuple[str, str], list[View]]:
    """All tensors in an engine's state that are as large as weights, by kind and name."""
    adam = state["optimizer"]["adam"]
    kinds = {"weights": state["weights"]}
    kinds |= {kind: {name: moments[kind] for name, moments in adam.items()} for kind in MOMENTS}
    return {
        (kind, name): _views_of(tensor)
        for kind, tensors in kinds.items()
        for name, tensor in tensors.items()
    }


def _views_of(tensor: torch.Tensor) -> list[View]:
    if isinstance(tensor, LocalShards):
        return list(tensor.views)
    if isinstance(tensor, DTensor):
        cut = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
        return [View(tensor.to_local().detach(), TensorSlice(tuple(cut[1]), tuple(cut[0])))]
    return [View(tensor.detach(), TensorSlice.full(tuple(tensor.shape)))]
