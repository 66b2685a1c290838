import pytest

from rlhf_runtime.reshard.accounting import tensor_parallel_pieces
from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.slices import TensorSlice

LAYER = "model.layers.0."
SHAPES: dict[str, tuple[int, ...]] = {
    LAYER + "self_attn.q_proj.weight": (32, 16),
    LAYER + "self_attn.q_proj.bias": (32,),
    LAYER + "self_attn.k_proj.weight": (8, 16),
    LAYER + "self_attn.o_proj.weight": (16, 32),
    LAYER + "self_attn.o_proj.bias": (16,),
    LAYER + "self_attn.q_norm.weight": (4,),
    LAYER + "mlp.down_proj.weight": (16, 24),
    "lm_head.weight": (100, 16),
}


def test_boxes_are_those_worked_out_by_hand() -> None:
    boxes = dict(tensor_parallel_pieces(SHAPES, 3, 4, num_key_value_heads=2))
    assert boxes == {
        LAYER + "self_attn.q_proj.weight": TensorSlice((24, 0), (8, 16)),
        LAYER + "self_attn.q_proj.bias": TensorSlice((24,), (8,)),
        LAYER + "self_attn.k_proj.weight": TensorSlice((4, 0), (4, 16)),  # the second head of two
        LAYER + "self_attn.o_proj.weight": TensorSlice((0, 24), (16, 8)),
        LAYER + "self_attn.o_proj.bias": TensorSlice((0,), (16,)),
        LAYER + "self_attn.q_norm.weight": TensorSlice((0,), (4,)),
        LAYER + "mlp.down_proj.weight": TensorSlice((0, 18), (16, 6)),
        "lm_head.weight": TensorSlice((96, 0), (4, 16)),  # 128 rows with padding, 32 for each
    }


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_parts_of_a_group_are_the_model(size: int) -> None:
    parts = [tensor_parallel_pieces(SHAPES, index, size, 2) for index in range(size)]
    Layout(SHAPES, tuple(parts))
    if size > 1:
        with pytest.raises(LayoutError, match="is incomplete"):
            Layout(SHAPES, tuple(parts[1:]))
