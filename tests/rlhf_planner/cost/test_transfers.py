"""What is put between calls, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_api.mesh import Mesh
from rlhf_api.plan import OffloadDepth
from rlhf_api.spec.models import Precision
from rlhf_planner.cost.hardware import CPU
from rlhf_planner.cost.micro_batches import CallRows
from rlhf_planner.cost.transfers import (
    DISPATCH_SECONDS,
    STORE_BYTES_PER_SECOND,
    columns_seconds,
    copy_seconds,
    host_copy_bytes,
    load_seconds,
    offload_seconds,
    release_seconds,
)
from rlhf_planner.memory.role_model import GIB

from .simple import IDEAL, MEGATRON, a_role, equal, links_of

FRESH = replace(IDEAL, memory_bytes_per_second=1.0)
TWO = Mesh(pool="a", data=2)
ROLE = a_role(mesh=TWO)
IN_BFLOAT16 = replace(ROLE, precision=Precision.BFLOAT16, engine=MEGATRON)


def test_what_the_host_has_a_copy_of() -> None:
    """FSDP: float32 weights and two moments of a rank's half. Megatron in bfloat16: weights of all,
    masters and moments of half. A frozen role: its weights."""
    parameters = ROLE.num_parameters
    assert host_copy_bytes(ROLE) == parameters // 2 * 12
    assert host_copy_bytes(IN_BFLOAT16) == parameters * 2 + parameters // 2 * 12
    frozen = replace(ROLE, is_trained=False, precision=Precision.BFLOAT16)
    assert host_copy_bytes(frozen) == parameters // 2 * 2


def test_everything_crosses_to_the_host_and_back() -> None:
    links = links_of(replace(IDEAL, host_bytes_per_second=10.0, host_efficiency=0.5))
    for seconds in (offload_seconds, load_seconds):
        call = seconds(ROLE, OffloadDepth.EVERYTHING, links)
        assert call.total == call.host_copy == pytest.approx(host_copy_bytes(ROLE) / 5)
        assert seconds(ROLE, OffloadDepth.NOTHING, links).total == 0


def test_derived_weights_are_dropped_and_made_anew() -> None:
    """From each replica's half of the masters, 6 bytes each; then gathered, half of 2 bytes."""
    links = links_of(replace(FRESH, link_bytes_per_second=1.0))
    assert offload_seconds(IN_BFLOAT16, OffloadDepth.DERIVED, links).total == 0
    call = load_seconds(IN_BFLOAT16, OffloadDepth.DERIVED, links)
    parameters = ROLE.num_parameters
    assert call.memory == pytest.approx(parameters / 2 * 6)
    assert call.data_communication == pytest.approx(parameters * 2 / 2)


def test_weights_are_copied_on_the_device_where_both_are_cut_alike() -> None:
    frozen = replace(ROLE, is_trained=False, role="reference")
    call = copy_seconds(ROLE, frozen, links_of(replace(FRESH, link_bytes_per_second=1.0)))
    assert call.total == call.memory == pytest.approx(ROLE.num_parameters / 2 * 8)


def test_weights_travel_where_they_are_cut_otherwise() -> None:
    """A rank's half of float32 weights comes from the ranks of its node; of two nodes half of it
    from the other one."""
    megatron = replace(
        ROLE, engine=MEGATRON, is_trained=False, mesh=Mesh(pool="a", data=1, tensor=2)
    )
    links = links_of(replace(IDEAL, link_bytes_per_second=2.0, network_bytes_per_second=1.0))
    own = ROLE.num_parameters / 2 * 4
    assert copy_seconds(megatron, ROLE, links).transfer == pytest.approx(own / 2)
    apart = replace(links, devices_per_node=1)
    assert copy_seconds(megatron, ROLE, apart).transfer == pytest.approx(own / 2 / 2 + own / 2)


def test_columns_pass_the_object_store_and_the_network() -> None:
    """Three columns of 8 x 100 numbers of 4 bytes, shared by two ranks."""
    links = links_of(replace(IDEAL, network_bytes_per_second=100.0))
    batch, size = CallRows(8, equal(10), equal(100)), 3 * 800 * 4 / 2
    here = columns_seconds(batch, 3, 2, links, crosses_nodes=False)
    assert here.total == pytest.approx(DISPATCH_SECONDS + size / STORE_BYTES_PER_SECOND)
    there = columns_seconds(batch, 3, 2, links, crosses_nodes=True)
    assert there.total == pytest.approx(here.total + size / 100)


def test_engines_of_gpus_unmap_their_memory_and_map_it_again() -> None:
    """50 GiB in three quarters of a second; processes on CPUs map none."""
    assert release_seconds(50 * GIB, links_of(IDEAL)).total == pytest.approx(0.8)
    assert release_seconds(50 * GIB, links_of(CPU)).total == 0
