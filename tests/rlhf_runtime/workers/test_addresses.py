"""Where workers listen."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from rlhf_runtime.workers import addresses
from rlhf_runtime.workers.addresses import LOOPBACK, interface_of, own_address, use_interface


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interface is chosen, and none stays chosen."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def own() -> tuple[str, str]:
    """An interface of this machine besides loopback, and its address."""
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family is socket.AF_INET and name != "lo":
                return name, entry.address
    raise AssertionError("no network interface besides loopback")


def test_a_single_machine_listens_to_itself_alone(unset: None) -> None:
    assert own_address(one_machine=True) == LOOPBACK
    use_interface(LOOPBACK)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in os.environ


def test_in_a_cluster_the_interface_of_the_nodes_address_is_used(unset: None) -> None:
    name, address = own()
    use_interface(address)
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == name


def test_an_interface_that_somebody_chose_stays(
    unset: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    use_interface(own()[1])
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"


def test_an_address_of_no_interface_leaves_the_choice_to_the_libraries(unset: None) -> None:
    assert interface_of("203.0.113.7") is None
    use_interface("203.0.113.7")
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_a_cluster_knows_a_node_by_the_address_that_ray_gave_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses.ray.util, "get_node_ip_address", lambda: "10.1.2.3")
    assert own_address(one_machine=False) == "10.1.2.3"
