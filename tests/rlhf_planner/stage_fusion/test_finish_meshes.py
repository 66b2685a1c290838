"""Engines that may finish: by hand, and what holds of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.mesh import Mesh
from rlhf_planner.stage_fusion.fusable_calls import finish_meshes

from .fused_jobs import mesh_of


def ranks(meshes: tuple[Mesh, ...]) -> set[tuple[int, int]]:
    return {(mesh.ranks.start, mesh.ranks.stop) for mesh in meshes}


def test_all_engines_finish_where_calls_are_elsewhere() -> None:
    engines = mesh_of(0, 8)
    elsewhere = Mesh(pool="b", data=8)
    assert finish_meshes(engines, [mesh_of(8, 4), elsewhere]) == (engines,)
    assert finish_meshes(engines, []) == ()


def test_devices_of_calls_are_left_free_in_every_combination() -> None:
    """One call is on ranks 0 and 1 of eight, another on 6 and 7."""
    found = finish_meshes(mesh_of(0, 8), [mesh_of(0, 2), mesh_of(6, 2)])
    without_first = {(2, 8), (2, 5), (2, 3)}
    without_last = {(0, 6), (0, 3), (0, 1)}
    without_both = {(2, 6), (2, 4), (2, 3)}
    assert ranks(found) == without_first | without_last | without_both


def test_engines_between_whose_ranks_others_lie_stay_together() -> None:
    """Engines {0,2} {1,3} {4,6} {5,7}; a call on rank 3 leaves the last two."""
    engines = Mesh(pool="a", data=4, tensor=2, tensor_stride=2)
    assert finish_meshes(engines, [mesh_of(3, 1)]) == (
        Mesh(pool="a", first_rank=4, data=2, tensor=2, tensor_stride=2),
    )


def test_a_call_on_all_ranks_leaves_none() -> None:
    assert finish_meshes(mesh_of(0, 8), [mesh_of(0, 8)]) == ()


@given(
    st.integers(0, 3),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1)]),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=6),
)
def test_they_are_whole_engines_that_leave_some_calls_free(
    first: int, cut: tuple[int, int], blocks: int, others: list[tuple[int, int]]
) -> None:
    tensor, stride = cut
    engines = Mesh(
        pool="a", first_rank=first, data=blocks * stride, tensor=tensor, tensor_stride=stride
    )
    meshes = [mesh_of(*each) for each in others]
    for mesh in finish_meshes(engines, meshes):
        Mesh.model_validate(mesh.model_dump())
        assert set(mesh.tensor_groups) <= set(engines.tensor_groups)
        assert any(not set(mesh.ranks) & set(other.ranks) for other in meshes)
