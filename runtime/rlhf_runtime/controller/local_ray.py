"""The local Ray instance of `rlhf run`: checked, started, ended."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import parameter, ray_constants, services
from ray._private import utils as ray_utils
from ray._private.ray_logging import stdout_deduplicator

from rlhf_runtime.controller.ray_patches import patched, patched_node_wait
from rlhf_runtime.end_with_parent import idle_command
from rlhf_runtime.errors import NotEnoughResources, RayFailed
from rlhf_runtime.forkserver import launcher

SHARED_MEMORY = Path("/dev/shm")
# Enough for a few steps' batches of a small job; Ray spills to disk beyond it.
OBJECT_STORE_BYTES = 256 * 2**20
SYSTEM_CONFIG = {
    # Workers do the work: they must not yield.
    "worker_niceness": 0,
    # They would be forked before the libraries are imported.
    "prestart_worker_first_driver": False,
    # There is no agent to collect metrics, and no reader.
    "enable_metrics_collection": False,
}
# Time limit for Ray's own processes to start.
START_SECONDS = 180.0
# Errors that Ray writes to the terminal, although it also raises them.
SUPPRESSED_OUTPUT = re.compile("A worker died or was killed while executing a task")
_AGENT_COMMAND = re.compile(r"^(--(?:dashboard|runtime_env)_agent_command=).*")
# Flags of the raylet for its agents. With port 0 it waits until an agent reports one.
_AGENT_PORT = re.compile(
    r"^(--(?:metrics-agent-port|metrics_export_port|runtime_env_agent_port)=)0$"
)
# A port that nobody listens on.
_NO_PORT = 1
# Start of the raylet's command for workers: Python, Ray's program for other environments, then the
# worker's script.
_WORKER = re.compile(r"^--python_worker_command=\S+ \S+/setup_worker\.py ")
_FORKED = f"--python_worker_command={subprocess.list2cmdline(launcher.command())} "
_IDLE = subprocess.list2cmdline(idle_command())


def check_shared_memory(needed_bytes: int, folder: Path = SHARED_MEMORY) -> None:
    """Check that shared memory can hold the object store.

    Raises:
        NotEnoughResources: it cannot.
    """
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free < needed_bytes:
        raise NotEnoughResources(
            f"too little shared memory: got {free // 2**20} MiB free in {folder}, needed "
            f"{needed_bytes // 2**20} MiB for batches between processes; enlarge it (docker run "
            "--shm-size=1g, or mount -o remount,size=1g) or free some"
        )


def start_local_ray(num_workers: int, fork_server: str | None = None) -> None:
    """Start Ray on this machine; nothing of it outlives this process.

    Args:
        num_workers: at the same time.
        fork_server: name of the server that forks them; None: each is started on its own.

    Raises:
        NotEnoughResources: too little shared memory.
        RayFailed: a process of Ray has died, or does not answer.
    """
    check_shared_memory(OBJECT_STORE_BYTES)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # the driver says what a worker raised
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    stdout_deduplicator.skip_re = SUPPRESSED_OUTPUT
    try:
        _init(num_workers, fork_server)
    except Exception as error:  # Ray raises plain exceptions if a process is missing
        ray.shutdown()
        raise RayFailed(
            f"Ray did not start on this machine: got {type(error).__name__}: {error}; give the "
            "command again; if that does not help, look for a lack of memory, processes or open "
            "files, and into /tmp/ray/session_latest/logs"
        ) from error


def _init(num_workers: int, fork_server: str | None) -> None:
    started: list[subprocess.Popen[bytes]] = []
    with (
        _patched_process_start(fork_server, started),
        patched_node_wait(started, START_SECONDS),
        _without_unused_services(),
    ):
        ray.init(
            address="local",
            num_cpus=num_workers,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="rlhf",
            _system_config=SYSTEM_CONFIG,
        )


def _patched_process_start(
    fork_server: str | None, started: list[subprocess.Popen[bytes]]
) -> AbstractContextManager[None]:
    """Patch how Ray starts its processes: they end after the driver, and workers are forked.

    Args:
        fork_server: name of the server that forks workers.
        started: receives the processes.
    """
    popen: type[subprocess.Popen[bytes]] = services.ConsolePopen

    def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        words = list(command)
        if command[0].endswith("/raylet"):
            # The agents would take two CPU seconds of every start, and a raylet ends if they need
            # more than 15 s, as on a busy machine. There is neither a dashboard nor an environment
            # to make, but a raylet refuses to have no agents.
            words = _without_agents(words)
        if fork_server is not None:
            words = [_WORKER.sub(lambda _: _FORKED, word) for word in words]
            options["env"] = (options.get("env") or os.environ) | {launcher.SERVER: fork_server}
        # Own process groups: a SIGTERM to the driver's group (`timeout`, a batch system) would end
        # Ray before the driver has saved anything.
        started.append(popen(words, **options, process_group=0))
        return started[-1]

    return patched(services, "ConsolePopen", start)


def _without_agents(command: Sequence[str]) -> list[str]:
    """Replace the raylet's two agents by idle processes."""
    words, num_agents = [], 0
    for word in command:
        word, is_agent = _AGENT_COMMAND.subn(lambda agent: agent[1] + _IDLE, word)
        words.append(_AGENT_PORT.sub(lambda port: f"{port[1]}{_NO_PORT}", word))
        num_agents += is_agent
    assert num_agents == 2, f"this release of Ray starts its agents otherwise: {command}"
    # Ray's own command leaves this port out.
    return [*words, f"--dashboard_agent_listen_port={_NO_PORT}"]


@contextmanager
def _without_unused_services() -> Iterator[None]:
    """Let Ray start neither autoscaler nor log monitor nor the server behind its dashboard."""
    # Nobody uses these services here, and they take half of the time of a start and an end.
    # `ray.init` starts the server even without a dashboard, and has no options for the others. It
    # would import the dashboard's dependencies to check them. Under `uv run` it would copy the
    # current folder, and start every worker by another `uv run`.
    without = functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)
    with (
        patched(parameter, "RayParams", without),
        patched(services, "start_api_server", _no_server),
        # It is called; any answer but None means that there is no dashboard.
        patched(ray_utils, "get_dashboard_dependency_error", ImportError),
        patched(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", False),
    ):
        yield


def _no_server(*_arguments: object, **_options: object) -> tuple[None, None]:
    """Return what Ray expects of the dashboard server: address and process."""
    return None, None


def require_local_ray() -> None:
    """Check the processes of the Ray instance that this process has started.

    Raises:
        RayFailed: one has died.
    """
    node = ray._private.worker._global_node
    dead = [] if node is None else sorted({name for name, _ in node.dead_processes()})
    if dead:
        raise RayFailed(
            f"Ray's own processes have died on this machine: got no {', '.join(dead)} any more; "
            "give the command again: it goes on from the newest checkpoint; if that does not help, "
            "look for a lack of memory, and into /tmp/ray/session_latest/logs"
        )


def object_store_bytes() -> int:
    """Return the bytes in Ray's object store, on all nodes, as of a moment ago."""
    name = "object_store_memory"
    free = ray.available_resources().get(name, 0.0)
    return int(ray.cluster_resources().get(name, 0.0) - free)


def stop_local_ray() -> None:
    """End every process that Ray started."""
    ray.shutdown()
