"""Tasks that a driver runs on each node of a Ray cluster, for the node's fork server."""

from __future__ import annotations

import os

import ray

from rlhf_api.spec.resources import Device
from rlhf_runtime.end_with_parent import RAYLET
from rlhf_runtime.forkserver import client, launcher
from rlhf_runtime.hooks import noop


def start_fork_server(device: Device) -> bool:
    """Start the node's fork server if there is none. Returns True if it has imported its
    libraries."""
    name = launcher.name_for(_raylet_socket())
    client.start_server(name, device, int(os.environ[RAYLET]))
    return client.wait_until_ready(name, noop)


def unload_fork_server(device: Device) -> bool:
    """Let the node's fork server drop its libraries. Returns False if there is none."""
    return client.unload(launcher.name_for(_raylet_socket()), noop)


def _raylet_socket() -> str:
    return str(ray._private.worker.global_worker.node.raylet_socket_name)
