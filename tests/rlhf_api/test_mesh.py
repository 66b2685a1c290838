import pytest

from rlhf_api.mesh import Mesh


def test_tensor_groups_are_neighbours_or_a_stride_apart() -> None:
    def groups(**cut: int) -> tuple[tuple[int, ...], ...]:
        return Mesh(pool="a", **cut).tensor_groups

    assert groups(data=2, tensor=2) == ((0, 1), (2, 3))
    assert groups(data=2, tensor=2, tensor_stride=2) == ((0, 2), (1, 3))
    assert groups(data=4, tensor=2, tensor_stride=2) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups(data=3, tensor=3, tensor_stride=3, first_rank=2) == (
        (2, 5, 8),
        (3, 6, 9),
        (4, 7, 10),
    )
    assert groups(data=2, pipeline=2, tensor=2) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups(data=2) == ((0,), (1,))


@pytest.mark.parametrize(
    "cut",
    [{"data": 3, "tensor_stride": 2}, {"data": 2, "pipeline": 2, "tensor_stride": 2}],
    ids=["replicas do not divide", "stages"],
)
def test_strides_divide_the_mesh(cut: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="tensor stride of 2 does not divide the mesh"):
        Mesh(pool="a", tensor=2, **cut)
