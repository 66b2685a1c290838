"""Layouts of a small model as FSDP, tensor and pipeline parallelism cut it, for these tests."""

from collections.abc import Sequence

from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.slices import TensorSlice, shard_slice
from rlhf_sizing.shape import DecoderShape

Shapes = dict[str, tuple[int, ...]]


def matrices(
    num_layers: int, hidden: int = 64, intermediate: int = 128, key_value: int | None = None
) -> Shapes:
    """Weights that tensor parallelism cuts, of equal size in every layer."""
    shapes: Shapes = {}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        for part in "qkvo":
            rows = (key_value or hidden) if part in "kv" else hidden
            shapes[f"{prefix}self_attn.{part}_proj.weight"] = (rows, hidden)
        for part in ("gate", "up"):
            shapes[f"{prefix}mlp.{part}_proj.weight"] = (intermediate, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, intermediate)
    return shapes


def with_norms_and_vocabulary(shapes: Shapes, hidden: int, vocabulary: int) -> Shapes:
    """Adds what is replicated or cut unevenly."""
    layers = {name.split(".self_attn")[0] for name in shapes if ".self_attn" in name}
    norms: Shapes = {f"{layer}.input_layernorm.weight": (hidden,) for layer in sorted(layers)}
    ends: Shapes = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    return {**shapes, **norms, **ends}


def of_decoder(shape: DecoderShape) -> Shapes:
    """All weights of a model of these dimensions."""
    found = matrices(
        shape.num_layers, shape.hidden_size, shape.intermediate_size, shape.key_value_size
    )
    for name, (rows, _) in list(found.items()):
        if shape.qkv_bias and name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            found[name.replace(".weight", ".bias")] = (rows,)
    found = with_norms_and_vocabulary(found, shape.hidden_size, shape.vocab_size)
    for layer in range(shape.num_layers):
        found[f"model.layers.{layer}.post_attention_layernorm.weight"] = (shape.hidden_size,)
    if shape.tied_embeddings:
        del found["lm_head.weight"]
    return found


def tensor_parallel_box(name: str, shape: tuple[int, ...], index: int, size: int) -> TensorSlice:
    """Rows or columns as Megatron and vLLM cut them; the vocabulary is padded to 64, then cut."""
    if len(shape) == 1:
        return (
            shard_slice(shape, 0, index, size)
            if name.endswith(".bias")
            else TensorSlice.full(shape)
        )
    if "embed" in name or "lm_head" in name:
        rows = -(-shape[0] // 64) * 64 // size
        first = min(index * rows, shape[0])
        return TensorSlice((first, 0), (min(rows, shape[0] - first), shape[1]))
    return shard_slice(shape, 1 if "o_proj" in name or "down_proj" in name else 0, index, size)


def is_on_stage(name: str, stage: int, pipeline: int, num_layers: int, shapes: Shapes) -> bool:
    """Whether a pipeline stage has a weight; a tied embedding is on the first and on the last."""
    if "layers." in name:
        return int(name.split("layers.")[1].split(".")[0]) * pipeline // num_layers == stage
    ends = {0} if "embed" in name else {pipeline - 1}
    return stage in (ends if "lm_head.weight" in shapes or "norm" in name else {0, pipeline - 1})


def model_parallel(
    shapes: Shapes, places: Sequence[tuple[int, int]], tensor: int, pipeline: int, num_layers: int
) -> Layout:
    """Every rank at its (pipeline stage, tensor index)."""
    of_place = {
        (stage, index): tuple(
            Piece(name, tensor_parallel_box(name, shape, index, tensor))
            for name, shape in shapes.items()
            if is_on_stage(name, stage, pipeline, num_layers, shapes)
        )
        for stage, index in set(places)
    }
    return Layout(shapes, tuple(of_place[place] for place in places))


def training_places(p: int, t: int, d: int) -> list[tuple[int, int]]:
    """Megatron's order: tensor ranks consecutive, then pipeline, then data."""
    return [(rank // t % p, rank % t) for rank in range(p * t * d)]


def strided_places(p: int, t: int, d: int, p_g: int, t_g: int) -> list[tuple[int, int]]:
    """HybridFlow's generation groups: tensor groups at stride t/t_g, pipeline groups at p/p_g."""
    return [(stage // (p // p_g), index // (t // t_g)) for stage, index in training_places(p, t, d)]


def consecutive_places(p: int, t: int, d: int, p_g: int, t_g: int) -> list[tuple[int, int]]:
    """The vanilla grouping: generation groups formed like training groups."""
    return [(rank // t_g % p_g, rank % t_g) for rank in range(p * t * d)]


def fully_sharded(shapes: Shapes, world_size: int) -> Layout:
    """FSDP2: every tensor cut by rows; the last ranks may get nothing."""
    return Layout(
        shapes,
        tuple(
            tuple(
                Piece(name, shard_slice(shape, 0, rank, world_size))
                for name, shape in shapes.items()
            )
            for rank in range(world_size)
        ),
    )
