"""Unused ports."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 30_000)
"""Ports from which neither Linux, Ray nor Kubernetes chooses one for somebody else."""


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port of {PORTS} is free at {address}")
