"""Collectives by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.mesh import Mesh
from rlhf_planner.cost.collectives import ALONE, Group, Links
from rlhf_planner.cost.hardware import HARDWARE

from .simple import IDEAL

ROUND = replace(IDEAL, link_bytes_per_second=100.0, network_bytes_per_second=10.0)
"""No latency."""
LINKS = Links(ROUND, 4)
SLOW = replace(
    ROUND,
    link_efficiency=0.5,
    network_efficiency=0.5,
    collective_seconds=1.0,
    link_latency_seconds=0.1,
    network_latency_seconds=0.25,
)


def test_within_a_node_a_rank_receives_what_others_have() -> None:
    assert LINKS.all_gather_seconds(400, Group(4)) == pytest.approx(3.0)  # 3/4 of 400 at 100
    assert LINKS.reduce_scatter_seconds(400, Group(4)) == pytest.approx(3.0)
    assert LINKS.all_reduce_seconds(400, Group(4)) == pytest.approx(6.0)


def test_between_nodes_the_slower_link_counts() -> None:
    """Two nodes of four: half of 400 comes into a node over four cards of 10."""
    assert LINKS.all_gather_seconds(400, Group(8, 2)) == pytest.approx(200 / 40)
    assert LINKS.all_gather_seconds(400, Group(2, 2)) == pytest.approx(200 / 10)
    quick = Links(replace(ROUND, network_bytes_per_second=1000.0), 4)
    assert quick.all_gather_seconds(400, Group(8, 2)) == pytest.approx(7 / 8 * 400 / 100)


def test_latency_is_a_constant_and_the_hops() -> None:
    links = Links(SLOW, 4)
    assert links.all_gather_seconds(0, Group(4)) == pytest.approx(1 + 3 * 0.1)
    assert links.all_reduce_seconds(0, Group(4)) == pytest.approx(1 + 6 * 0.1)
    assert links.all_gather_seconds(0, Group(8, 2)) == pytest.approx(1 + 6 * 0.1 + 0.25)
    assert links.all_gather_seconds(400, Group(4)) == pytest.approx(6 + 1.3)


def test_one_rank_waits_for_nobody() -> None:
    assert Links(SLOW, 4).all_gather_seconds(400, ALONE) == 0
    assert Links(SLOW, 4).all_reduce_seconds(400, ALONE) == 0


def test_messages() -> None:
    links = Links(SLOW, 4)
    assert links.send_seconds(100, crosses_nodes=False) == pytest.approx(2 + 0.1 + 1)
    assert links.send_seconds(100, crosses_nodes=True) == pytest.approx(20 + 0.25 + 1)
    assert LINKS.receive_seconds(100, 100) == pytest.approx(1 + 10)


@pytest.mark.parametrize(
    ("mesh", "data", "tensor", "stages"),
    [
        (Mesh(pool="a", data=4), Group(4), ALONE, ALONE),
        (Mesh(pool="a", data=8), Group(8, 2), ALONE, ALONE),
        (Mesh(pool="a", first_rank=2, data=4), Group(4, 2), ALONE, ALONE),
        (Mesh(pool="a", data=2, tensor=4), Group(2, 2), Group(4), ALONE),
        (Mesh(pool="a", data=2, tensor=2), Group(2), Group(2), ALONE),
        (Mesh(pool="a", data=2, tensor=2, pipeline=2), Group(2, 2), Group(2), Group(2)),
        (Mesh(pool="a", data=1, tensor=4, pipeline=4), ALONE, Group(4), Group(4, 4)),
        (Mesh(pool="a", data=2, tensor=2, tensor_stride=2), Group(2), Group(2), ALONE),
    ],
)
def test_groups_of_a_mesh(mesh: Mesh, data: Group, tensor: Group, stages: Group) -> None:
    """On nodes of four."""
    assert LINKS.data_group(mesh) == data
    assert LINKS.tensor_group(mesh) == tensor
    assert LINKS.stage_group(mesh) == stages


@pytest.mark.parametrize(("name", "bus"), [("A100-80G", 235e9), ("H200", 366e9), ("B200", 678e9)])
def test_large_collectives_reach_the_measured_bus_bandwidth(name: str, bus: float) -> None:
    """Of 8 GPUs with NVLink: what nccl-tests calls bus bandwidth, 2 (n - 1)/n S / seconds, of a
    payload of 8 GiB. Source: stas00/ml-engineering, network/README.md, without NVLink SHARP."""
    size = 8 * 2**30
    seconds = Links(HARDWARE[name], 8).all_reduce_seconds(size, Group(8))
    assert 2 * 7 / 8 * size / seconds == pytest.approx(bus, rel=0.02)


@given(
    st.floats(0, 1e9), st.integers(1, 64), st.integers(1, 8), st.floats(1, 100), st.floats(1, 100)
)
def test_faster_links_and_fewer_bytes_are_never_slower(
    size: float, ranks: int, nodes: int, link: float, network: float
) -> None:
    group = Group(ranks, min(nodes, ranks))
    quick = replace(
        SLOW,
        link_bytes_per_second=SLOW.link_bytes_per_second * link,
        network_bytes_per_second=SLOW.network_bytes_per_second * network,
    )
    base = Links(SLOW, 8).all_gather_seconds(size, group)
    assert Links(quick, 8).all_gather_seconds(size, group) <= base
    assert Links(SLOW, 8).all_gather_seconds(2 * size, group) >= base
