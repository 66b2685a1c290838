"""Llamas, and how training and generation lay them out over ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlhf_runtime.reshard.boxes import cut
from rlhf_runtime.reshard.grouping import choose_groups, layout_of
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.tensor_parallel import tensor_parallel_pieces
from rlhf_runtime.reshard.topology import Topology


@dataclass(frozen=True)
class Llama:
    """A model's dimensions."""

    layers: int
    hidden: int
    intermediate: int
    key_value: int
    """Rows of the key and of the value projection."""
    key_value_heads: int
    vocabulary: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor, by Hugging Face name."""
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


def tensor_parallel(llama: Llama, world_size: int, size: int) -> Layout:
    """Neighbouring ranks share a model; groups are replicas of each other."""
    shapes = llama.shapes
    parts = [tensor_parallel_pieces(shapes, i, size, llama.key_value_heads) for i in range(size)]
    return Layout(shapes, tuple(parts[rank % size] for rank in range(world_size)))


def fully_sharded(llama: Llama, world_size: int) -> Layout:
    """FSDP2: every tensor cut by rows."""
    shapes = llama.shapes
    return Layout(
        shapes,
        tuple(
            tuple(Piece(name, cut(shape, 0, rank, world_size)) for name, shape in shapes.items())
            for rank in range(world_size)
        ),
    )


def one_model(llama: Llama, ranks: int) -> Layout:
    """Tensor parallelism over all ranks."""
    return tensor_parallel(llama, ranks, ranks)


CASES: dict[str, tuple[Callable[[Llama, int], Layout], int]] = {
    "1-4-1 -> 1-2": (one_model, 2),
    "FSDP 4 -> tp 2": (fully_sharded, 2),
    "1-4-1 -> 1-1": (one_model, 1),
}
"""How training lays a model out, and the ranks of a generation group."""


def generation_layout(
    llama: Llama, source: Layout, size: int, topology: Topology | None = None
) -> Layout:
    """Generation in groups of so many ranks, chosen for what the source holds."""
    heads = llama.key_value_heads
    parts = [tensor_parallel_pieces(llama.shapes, i, size, heads) for i in range(size)]
    return layout_of(source, parts, choose_groups(source, parts, topology))
