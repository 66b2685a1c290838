"""`python -P -m rlhf_runtime.controller.ray_start`: starts Ray in a pod of a RayCluster.

It is the command of the pod's container, and runs the `ray start` command that KubeRay has made for
the pod: with longer time limits, because a busy node exceeds Ray's, and without the client server.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

from ray._private import services
from ray.scripts import scripts

from rlhf_api.on_cluster import RAY_START_SECONDS, RAY_START_VARIABLE
from rlhf_runtime.controller.ray_patches import patched, patched_node_wait

# Argument in the raylet's command for its agent.
_LISTEN_PORT = re.compile(r"--listen-port=(\d+)")


def main() -> None:
    """Run the `ray start` command in the pod's environment until the node ends."""
    ray, start, *arguments = shlex.split(os.environ[RAY_START_VARIABLE])
    assert (ray, start) == ("ray", "start"), os.environ[RAY_START_VARIABLE]
    start_ray(arguments)


def start_ray(arguments: Sequence[str]) -> None:
    """Run `ray start` with these arguments. With --block, return when a process has ended."""
    started: list[subprocess.Popen[bytes]] = []
    popen: type[subprocess.Popen[bytes]] = services.ConsolePopen

    def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        words = _with_agent_port(command) if command[0].endswith("/raylet") else command
        started.append(popen(words, **options))
        return started[-1]

    with (
        patched(services, "ConsolePopen", start),
        patched_node_wait(started, RAY_START_SECONDS),
        # Nobody uses the client server, and a head ends with it. `ray start` has no option to
        # leave it out, but does so where the server's dependencies are missing.
        patched(scripts, "get_ray_client_dependency_error", ImportError),
    ):
        scripts.start.main(list(arguments), prog_name="ray start")


def _with_agent_port(command: Sequence[str]) -> Sequence[str]:
    """Add the HTTP port of the raylet's agent, which Ray itself gives to the agent only."""
    # Without it the raylet waits until the agent reports the port, and ends after 15 s.
    ports = [port for word in command for port in _LISTEN_PORT.findall(word)]
    assert len(ports) == 1, f"this release of Ray starts its agents otherwise: {command}"
    return [*command, f"--dashboard_agent_listen_port={ports[0]}"]


if __name__ == "__main__":
    main()
