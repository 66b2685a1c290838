"""Llamas, and their layouts in training and generation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import TrainingEngineType
from rlhf_planner.memory.engine_groups import TrainedModel, engine_meshes
from rlhf_runtime.reshard.accounting import tensor_parallel_pieces
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.slices import shard_slice
from rlhf_sizing.shape import DecoderShape

ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Llama:
    """Dimensions of a model."""

    layers: int
    hidden: int
    intermediate: int
    key_value: int
    """Rows of the key and of the value projection."""
    key_value_heads: int
    vocabulary: int

    @property
    def decoder(self) -> DecoderShape:
        """Shape for the planner."""
        head_dim = self.key_value // self.key_value_heads
        return DecoderShape(
            num_layers=self.layers,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_attention_heads=self.hidden // head_dim,
            num_key_value_heads=self.key_value_heads,
            head_dim=head_dim,
            vocab_size=self.vocabulary,
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of tensors by Hugging Face name."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
            "lm_head.weight": (self.vocabulary, self.hidden),
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            for part in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{prefix}{part}.weight"] = (self.hidden,)
            for part, rows in zip(
                "qkvo", (self.hidden, *[self.key_value] * 2, self.hidden), strict=True
            ):
                shapes[f"{prefix}self_attn.{part}_proj.weight"] = (rows, self.hidden)
            for part in ("gate", "up"):
                shapes[f"{prefix}mlp.{part}_proj.weight"] = (self.intermediate, self.hidden)
            shapes[f"{prefix}mlp.down_proj.weight"] = (self.hidden, self.intermediate)
        return shapes


SHAPES = {
    "tiny": Llama(2, 128, 512, 64, 4, 1024),
    "100M": Llama(12, 768, 2048, 256, 4, 16000),
}
LLAMA_70B = Llama(80, 8192, 28672, 1024, 8, 128256)


def sharded(ranks: int) -> Mesh:
    """Mesh of FSDP2."""
    return Mesh(pool="ranks", data=ranks)


def tensor_parallel(ranks: int, size: int) -> Mesh:
    """Mesh of Megatron's tensor groups of `size` neighbours; groups are replicas."""
    return Mesh(pool="ranks", data=ranks // size, tensor=size)


CASES: dict[str, tuple[Mesh, int]] = {
    "1-4-1 -> 1-2": (tensor_parallel(4, 4), 2),
    "FSDP 4 -> tp 2": (sharded(4), 2),
    "1-4-1 -> 1-1": (tensor_parallel(4, 4), 1),
}
"""Training mesh, and the ranks of a generation group, by name."""


def training_layout(llama: Llama, mesh: Mesh) -> Layout:
    """Slices that ranks train."""
    if mesh.tensor > 1:
        return engine_layout(llama, mesh)
    ranks = range(mesh.data)
    return Layout(llama.shapes, tuple(tuple(rows_of(llama, r, mesh.data)) for r in ranks))


def rows_of(llama: Llama, rank: int, ranks: int) -> Iterator[Piece]:
    """Yield a rank's pieces under FSDP2."""
    # FSDP2 shards every tensor in dimension 0.
    for name, shape in llama.shapes.items():
        yield Piece(name, shard_slice(shape, 0, rank, ranks))


def generation_layout(
    llama: Llama, trained: Mesh, size: int, ranks_per_node: int | None = None
) -> Layout:
    """Slices of generation in groups of `size` ranks, which the planner chooses."""
    # Only Megatron trains with tensor or pipeline parallelism.
    is_model_parallel = trained.tensor * trained.pipeline > 1
    engine = TrainingEngineType.MEGATRON if is_model_parallel else TrainingEngineType.FSDP
    model = TrainedModel(llama.decoder, trained, ELEMENT_BYTES, engine)
    per_node = ranks_per_node or trained.num_devices
    return engine_layout(llama, engine_meshes({"model": model}, size, per_node)["model"])


def engine_layout(llama: Llama, mesh: Mesh) -> Layout:
    """Slices of tensor-parallel ranks."""
    shapes, size = llama.shapes, mesh.tensor
    parts = [tensor_parallel_pieces(shapes, i, size, llama.key_value_heads) for i in range(size)]
    # Groups need not be neighbours, so pieces are looked up by rank.
    pieces = {rank: parts[i] for group in mesh.tensor_groups for i, rank in enumerate(group)}
    return Layout(shapes, tuple(pieces[rank] for rank in mesh.ranks))
