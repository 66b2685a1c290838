import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.reshard.slices import TensorSlice, are_disjoint, covers, shard_slice, uncovered

SPACE = 5


@st.composite
def box_lists(draw: st.DrawFn) -> list[TensorSlice]:
    dims = draw(st.integers(0, 3))
    axis = st.tuples(st.integers(0, SPACE), st.integers(0, SPACE))
    spans = st.lists(st.tuples(*[axis] * dims), min_size=2, max_size=4)
    return [
        TensorSlice(tuple(min(s) for s in span), tuple(max(s) - min(s) for s in span))
        for span in draw(spans)
    ]


def painted(*boxes: TensorSlice) -> np.ndarray:
    """How many of the boxes hold each index: the oracle."""
    count = np.zeros((SPACE,) * len(boxes[0].shape), dtype=int)
    for box in boxes:
        count[box.slices_in(TensorSlice.full(count.shape))] += 1
    return count


@given(box_lists())
def test_set_operations_equal_those_on_painted_arrays(boxes: list[TensorSlice]) -> None:
    one, other = boxes[:2]
    common = one.intersection(other)
    both = (painted(one) > 0) & (painted(other) > 0)
    assert (common is None) == (not both.any())
    if common is not None:
        assert np.array_equal(painted(common) > 0, both)
    rest = one.difference(other)
    assert all(part.volume for part in rest)
    assert np.array_equal(
        painted(*rest) if rest else 0 * both, (painted(one) > 0) & (painted(other) == 0)
    )
    assert one.contains(other) == (both.sum() == other.volume)
    assert one.volume == (painted(one) > 0).sum()


@given(box_lists())
def test_coverage_and_disjointness_equal_those_on_painted_arrays(boxes: list[TensorSlice]) -> None:
    box, *others = boxes
    left = painted(box) * (painted(*others) == 0)
    assert sum(part.volume for part in uncovered(box, others)) == left.sum()
    assert covers(others, box) == np.array_equal(painted(*others) > 0, painted(box) > 0)
    assert are_disjoint(others) == (painted(*others) <= 1).all()


@given(st.integers(0, 20), st.integers(1, 7))
def test_the_parts_of_a_cut_are_those_of_torch_shard(length: int, num_parts: int) -> None:
    parts = [shard_slice((3, length), 1, index, num_parts) for index in range(num_parts)]
    assert covers(parts, TensorSlice.full((3, length)))
    assert are_disjoint(parts)
    part = -(-length // num_parts)
    for index, box in enumerate(parts):
        assert box.start[0] == 0 and box.shape[0] == 3
        assert box.shape[1] == max(0, min((index + 1) * part, length) - index * part)


def test_a_box_is_found_in_a_tensor_that_holds_a_larger_one() -> None:
    full = np.arange(24).reshape(4, 6)
    outer, inner = TensorSlice((1, 2), (3, 4)), TensorSlice((2, 3), (1, 2))
    local = full[outer.slices_in(TensorSlice.full((4, 6)))]
    assert local[inner.slices_in(outer)].tolist() == full[2:3, 3:5].tolist()
