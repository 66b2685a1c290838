"""Network addresses of workers: on this machine only, or reachable from other nodes."""

from __future__ import annotations

import os

import psutil
import ray

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"


def own_address(one_machine: bool) -> str:
    """Return the address at which this process serves: loopback, or its node's address in Ray."""
    return LOOPBACK if one_machine else str(ray.util.get_node_ip_address())


def use_interface(address: str) -> None:
    """Let collectives use the network interface with an address. Values of the user stay."""
    # gloo by itself resolves the host's name, which is loopback on many machines. NCCL needs no
    # network on one machine.
    if address == LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK_INTERFACE
        return
    name = interface_of(address)
    if name is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with an address; None if there is none."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return str(name)
    return None
