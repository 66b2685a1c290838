"""Keep libraries imported between the runs of this machine."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import closing, suppress

import typer

from rlhf_api.spec.resources import Device
from rlhf_planner.plan import local_device
from rlhf_runtime.errors import ForkServerFailed
from rlhf_runtime.forkserver.client import OwnForkServer, retire, wait_until_ready
from rlhf_runtime.forkserver.standby import describe_other_servers, is_listening, name_for
from rlhf_runtime.hooks import noop

POLL_SECONDS = 0.2
"""Interval at which the server is checked."""
COMPARE_SECONDS = 5.0
"""Interval at which code and packages are compared."""


def serve_standby() -> None:
    """Serve until Ctrl-C, SIGTERM or the terminal's end; then wait for running workers.

    Raises:
        ForkServerFailed: the libraries cannot be imported, or the process with them has died.
    """
    # All three signals end it the same way, by KeyboardInterrupt.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    device = local_device()
    # The name is a digest of code, packages, variables and limits. Runs find a server by it, and
    # servers of different names may run at the same time.
    name, started = name_for(device), time.monotonic()
    try:
        server = None if is_listening(name) else OwnForkServer(device, name)
    except OSError:
        server = None  # another process has just started one
    if server is None:
        _notify(f"another `rlhf standby` is active ({name}): runs share it")
        return
    # Another server is no error, but it uses memory that the user may have forgotten.
    for difference in describe_other_servers(name):
        _notify(
            f"another `rlhf standby` is active with {difference}: it keeps its memory, and "
            "serves other runs than this one",
        )
    with suppress(KeyboardInterrupt), closing(server):
        try:
            if not wait_until_ready(name, noop):
                raise ForkServerFailed(
                    "the libraries of workers were not imported: got the end of the process that "
                    f"imports them; free memory, or run {sys.executable} -c 'import torch, "
                    "transformers, vllm'"
                )
            _notify(
                f"ready after {time.monotonic() - started:.1f} s: `rlhf run` forks its "
                "workers here and says so, as long as it has the same code, packages, "
                "library variables, limits and priority; Ctrl-C ends this",
            )
            _serve(server, device)
        except KeyboardInterrupt:
            _wait_for_workers(server)
    _notify("standby has ended")


def _serve(server: OwnForkServer, device: Device) -> None:
    last_comparison = time.monotonic()
    while server.is_alive:
        if time.monotonic() - last_comparison > COMPARE_SECONDS:
            last_comparison = time.monotonic()
            if _current_name(device) != server.name:
                _notify(
                    "code or packages have changed: runs import libraries themselves until this "
                    "command is started again",
                )
                last_comparison = float("inf")
        time.sleep(POLL_SECONDS)
    raise ForkServerFailed(
        "the process with the libraries has died, and with it the workers that it had forked: got "
        "its end; free memory and start it again (a run starts its "
        "workers again, by itself, as its failurePolicy allows)"
    )


def _current_name(device: Device) -> str:
    try:
        return name_for(device)
    except OSError:
        # A file is missing in the middle of an installation: the packages have changed.
        return ""


def _wait_for_workers(server: OwnForkServer) -> None:
    """Accept no more runs, and wait for the workers of current ones; a second Ctrl-C ends them."""
    if not retire(server.name):
        return
    # Workers usually end within a second; only a longer wait needs an explanation.
    notice_time = time.monotonic() + 1.0
    while server.is_alive:
        if time.monotonic() > notice_time:
            _notify(
                "waiting for the runs that use its workers; Ctrl-C again ends those workers now",
            )
            notice_time = float("inf")
        time.sleep(POLL_SECONDS)


def _notify(text: str) -> None:
    with suppress(OSError):  # the terminal may be closed
        typer.echo(text, err=True)
