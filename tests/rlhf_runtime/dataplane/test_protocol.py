import itertools

import pytest

from rlhf_api.mesh import Mesh
from rlhf_runtime.dataplane.partition import contiguous_rows
from rlhf_runtime.dataplane.protocol import PROTOCOLS, Coordinates

from .table_3 import GRIDS, NUM_GROUPS, collected, given

CUBE = Mesh(pool="a", data=2, tensor=2, pipeline=2)
ALL = list(range(8))
FIRST, SECOND = [0, 1, 2, 3], [4, 5, 6, 7]

# HybridFlow, table 3, on data 2 x pipeline 2 x tensor 2 in Megatron's order: ranks 0-3 are the
# first replica, of which 0 and 1 are the first stage. For each protocol the rows of every rank and
# the ranks that are collected.
TABLE_3 = {
    "one_to_all": ([ALL] * 8, ALL),
    "3d": ([FIRST] * 4 + [SECOND] * 4, [2, 6]),
    "3d_all_micro_dp": ([FIRST] * 4 + [SECOND] * 4, [0, 4]),
    "3d_pp_only": ([ALL] * 8, [0, 2]),
    "dp": ([[rank] for rank in range(8)], ALL),
    "all_to_all": ([[rank] for rank in range(8)], ALL),
}
EACH_ROW_ONCE = ("3d", "3d_all_micro_dp", "dp", "all_to_all")
"""Others give every collected rank all rows."""


def mesh_of(**cut: int) -> Mesh:
    return Mesh(pool="a", **cut)


def places(mesh: Mesh) -> list[Coordinates]:
    return [Coordinates.in_mesh(rank, mesh) for rank in mesh.ranks]


def given_and_collected(name: str, mesh: Mesh, rows: int) -> tuple[list[list[int]], list[int]]:
    protocol = PROTOCOLS[name]
    parts = [
        contiguous_rows(range(rows), 1, protocol.distribute(at)).rows().tolist()
        for at in places(mesh)
    ]
    return parts, [at.rank for at in places(mesh) if protocol.collect(at)]


@pytest.mark.parametrize("name", TABLE_3)
def test_protocols_are_those_of_hybridflow(name: str) -> None:
    assert given_and_collected(name, CUBE, 8) == TABLE_3[name]
    assert (given(name, CUBE, 8), collected(name, CUBE)) == TABLE_3[name], "the reference"


def test_every_protocol_is_in_the_table() -> None:
    assert set(PROTOCOLS) == set(TABLE_3)


@pytest.mark.parametrize("rows", NUM_GROUPS)
@pytest.mark.parametrize("mesh", GRIDS, ids=str)
@pytest.mark.parametrize("name", TABLE_3)
def test_on_every_grid_ranks_get_and_give_what_the_table_says(
    name: str, mesh: Mesh, rows: int
) -> None:
    parts, counted = given_and_collected(name, mesh, rows)
    assert parts == given(name, mesh, rows)
    assert counted == collected(name, mesh)
    concatenated = [row for rank in counted for row in parts[rank]]
    times = 1 if name in EACH_ROW_ONCE else len(counted)
    assert concatenated == list(range(rows)) * times, "in the order of ranks"


@pytest.mark.parametrize("training", GRIDS, ids=str)
def test_generation_replicas_get_parts_of_their_own(training: Mesh) -> None:
    """HybridFlow, section 5: trained as p-t-d, generated with a tensor size that divides p x t: so
    many micro-DP replicas in each training replica."""
    inner = training.pipeline * training.tensor
    for tensor in (size for size in (1, 2, 4) if inner % size == 0):
        micro = inner // tensor
        generation = mesh_of(data=training.data * micro, tensor=tensor)
        parts, counted = given_and_collected("3d_all_micro_dp", generation, 8)
        batch_slice = 8 // (training.data * micro)
        expected = [
            list(range(first, first + batch_slice))
            for first in range(0, 8, batch_slice)
            for _ in range(tensor)
        ]
        assert parts == expected
        assert counted == list(range(0, training.num_devices, tensor))


def test_tensor_ranks_are_consecutive_then_stages_then_replicas() -> None:
    mesh = mesh_of(data=2, tensor=3, pipeline=2)
    ranks = itertools.product(range(2), range(2), range(3))
    expected = [Coordinates(data, 2, tensor, 3, pipeline, 2) for data, pipeline, tensor in ranks]
    assert places(mesh) == expected
    assert [at.rank for at in expected] == list(range(12))
    assert {at.num_ranks for at in expected} == {12}


def test_a_mesh_begins_at_its_own_first_rank() -> None:
    mesh = Mesh(pool="a", first_rank=2, data=2, tensor=2)
    assert [Coordinates.in_mesh(rank, mesh) for rank in (2, 3, 4, 5)] == [
        Coordinates(data, 2, tensor, 2) for data in range(2) for tensor in range(2)
    ]
    with pytest.raises(ValueError, match="is not in range"):
        Coordinates.in_mesh(1, mesh)


def test_tensor_ranks_may_be_a_stride_apart() -> None:
    """Two blocks of the groups {0,2} and {1,3}, after a rank that is not in the mesh."""
    mesh = Mesh(pool="a", first_rank=1, data=4, tensor=2, tensor_stride=2)
    found = places(mesh)
    assert [at.data for at in found] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert [at.tensor for at in found] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [at.rank for at in found] == list(range(8))
    assert {at.num_ranks for at in found} == {8}


@pytest.mark.parametrize("mesh", GRIDS, ids=str)
def test_a_mesh_knows_which_rank_is_where(mesh: Mesh) -> None:
    for rank, at in zip(mesh.ranks, places(mesh), strict=True):
        assert mesh.rank_at(at.data, at.pipeline, at.tensor) == rank
        group = mesh.tensor_groups[at.data * mesh.pipeline + at.pipeline]
        assert group[at.tensor] == rank


def test_a_call_between_two_meshes_gives_each_of_their_ranks_a_part() -> None:
    training, engines = Mesh(pool="a", first_rank=4, data=2), Mesh(pool="a", data=1, tensor=2)
    places = [Coordinates.in_call(rank, engines, training) for rank in (0, 1, 4, 5)]
    assert places == [Coordinates(number, 4) for number in range(4)]
    assert Coordinates.in_call(1, engines, None) == Coordinates.in_mesh(1, engines)
