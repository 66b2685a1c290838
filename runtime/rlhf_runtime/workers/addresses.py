"""Where a worker can be reached: on this machine only, or from other nodes of its cluster."""

from __future__ import annotations

import os

import psutil
import ray

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"


def own_address(one_machine: bool) -> str:
    """The address at which this process serves: loopback, or that of its node as Ray knows it."""
    return LOOPBACK if one_machine else str(ray.util.get_node_ip_address())


def use_interface(address: str) -> None:
    """Let collectives go over the network interface that has an address.

    By itself gloo asks what the host's name means, which on many machines is loopback. Who has
    chosen an interface keeps it. NCCL on one machine needs no network.
    """
    if address == LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK_INTERFACE
        return
    name = interface_of(address)
    if name is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    """The name of the network interface that has an address; None: none has."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return str(name)
    return None
