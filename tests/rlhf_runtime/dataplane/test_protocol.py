import itertools

import pytest

from rlhf_api.plan import CallKind, Mesh
from rlhf_runtime.dataplane.partition import Extent, Share, contiguous
from rlhf_runtime.dataplane.protocol import (
    BY_KIND,
    PROTOCOLS,
    Coordinates,
    Protocol,
    bounds_of_part,
    protocol_of,
)

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


def mesh_of(**cut: int) -> Mesh:
    return Mesh(pool="a", **cut)


def places(mesh: Mesh) -> list[Coordinates]:
    return [Coordinates.of(rank, mesh) for rank in mesh.ranks]


def given_and_collected(protocol: Protocol, mesh: Mesh) -> tuple[list[list[int]], list[int]]:
    given = [
        contiguous(range(8), 1, protocol.distribute(at)).rows().tolist() for at in places(mesh)
    ]
    return given, [at.rank for at in places(mesh) if protocol.collect(at)]


@pytest.mark.parametrize("name", TABLE_3)
def test_protocols_are_those_of_hybridflow(name: str) -> None:
    assert given_and_collected(PROTOCOLS[name], CUBE) == TABLE_3[name]


def test_every_protocol_is_in_the_table() -> None:
    assert set(PROTOCOLS) == set(TABLE_3)


def test_generation_replicas_get_parts_of_their_own() -> None:
    # Reference case of HybridFlow, section 5: trained as 1-4-2, generated with tensor size 2: two
    # micro replicas in each training replica.
    given, collected = given_and_collected(PROTOCOLS["3d_all_micro_dp"], mesh_of(data=4, tensor=2))
    assert given == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]]
    assert collected == [0, 2, 4, 6]


@pytest.mark.parametrize("name", ["3d", "3d_all_micro_dp", "dp"])
@pytest.mark.parametrize(
    "mesh", [mesh_of(data=1), mesh_of(data=3), mesh_of(data=2, tensor=3), CUBE], ids=str
)
def test_collected_rows_are_every_row_once(name: str, mesh: Mesh) -> None:
    given, collected = given_and_collected(PROTOCOLS[name], mesh)
    assert sorted(row for rank in collected for row in given[rank]) == ALL


def test_tensor_ranks_are_consecutive_then_stages_then_replicas() -> None:
    mesh = mesh_of(data=2, tensor=3, pipeline=2)
    ranks = itertools.product(range(2), range(2), range(3))
    expected = [Coordinates(data, 2, tensor, 3, pipeline, 2) for data, pipeline, tensor in ranks]
    assert places(mesh) == expected
    assert [at.rank for at in expected] == list(range(12))
    assert {at.num_ranks for at in expected} == {12}


@pytest.mark.parametrize("kind", CallKind)
def test_every_kind_of_call_has_a_protocol(kind: CallKind) -> None:
    assert protocol_of(kind) is PROTOCOLS[BY_KIND[kind]]


def test_a_pair_of_ones_own_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(at: Coordinates) -> Share:
        return Share(at.data_size - 1 - at.data, at.data_size)

    monkeypatch.setitem(PROTOCOLS, "backwards", Protocol(backwards, lambda at: True))
    monkeypatch.setitem(BY_KIND, CallKind.SCORE, "backwards")
    given, collected = given_and_collected(protocol_of(CallKind.SCORE), mesh_of(data=2))
    assert given == [SECOND, FIRST]
    assert collected == [0, 1]


def test_a_mesh_begins_at_its_own_first_rank() -> None:
    mesh = Mesh(pool="a", first_rank=2, data=2, tensor=2)
    assert [Coordinates.of(rank, mesh) for rank in (2, 3, 4, 5)] == [
        Coordinates(data, 2, tensor, 2) for data in range(2) for tensor in range(2)
    ]
    with pytest.raises(ValueError, match="is not in range"):
        Coordinates.of(1, mesh)


@pytest.mark.parametrize("kind", CallKind)
@pytest.mark.parametrize("cut", [{"data": 1}, {"data": 20}, {"data": 3, "tensor": 2}], ids=str)
def test_the_bounds_of_all_parts_cover_the_batch(kind: CallKind, cut: dict[str, int]) -> None:
    extent, mesh = Extent(37, 3), mesh_of(**cut)
    bounds = [bounds_of_part(kind, extent, at, range(37)) for at in places(mesh)]
    assert {row for each in bounds for row in each} == set(range(extent.num_rows))
