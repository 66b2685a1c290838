"""`rlhf standby`: libraries stay in memory between the runs of this machine."""

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
from rlhf_runtime.hooks import nothing

LOOK_SECONDS = 0.2
"""How often it is seen whether the server lives."""
COMPARE_SECONDS = 5.0
"""How often it is seen whether code or packages have changed."""


def standby_command() -> None:
    """Stand by until Ctrl-C, SIGTERM or the terminal's end, and then for the workers that are left.

    Raises:
        ForkServerFailed: libraries cannot be imported, or the process that holds them has died.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    device = local_device()
    name, begin = name_for(device), time.monotonic()
    try:
        server = None if is_listening(name) else OwnForkServer(device, name)
    except OSError:
        server = None  # somebody was faster
    if server is None:
        _say(f"another `rlhf standby` stands by already ({name}): runs share that one")
        return
    for difference in describe_other_servers(name):
        _say(
            f"another `rlhf standby` is there, started with {difference}: it keeps its memory, and "
            "serves other runs than this one",
        )
    with suppress(KeyboardInterrupt), closing(server):
        try:
            if not wait_until_ready(name, nothing):
                raise ForkServerFailed(
                    "the libraries of workers were not imported: got an end of the process that "
                    f"imports them; free memory, or see what {sys.executable} -c 'import torch, "
                    "transformers, vllm' says"
                )
            _say(
                f"standing by after {time.monotonic() - begin:.1f} s: `rlhf run` takes its "
                "workers from here and says so, as long as it has the same code, packages, "
                "library variables, limits and priority; Ctrl-C ends this",
            )
            _stand_by(server, device)
        except KeyboardInterrupt:
            _wait_for_workers(server)
    _say("stands by no more")


def _stand_by(server: OwnForkServer, device: Device) -> None:
    compared = time.monotonic()
    while server.lives:
        if time.monotonic() - compared > COMPARE_SECONDS:
            compared = time.monotonic()
            if _name_now(device) != server.name:
                _say(
                    "code or packages have changed: runs import by themselves until this is "
                    "started again",
                )
                compared = float("inf")
        time.sleep(LOOK_SECONDS)
    raise ForkServerFailed(
        "the process that held the libraries has died: got its end while standing by, and with it "
        "that of the workers it had forked; free memory and start it again (a run starts its "
        "workers again, by itself, as its failurePolicy allows)"
    )


def _name_now(device: Device) -> str:
    try:
        return name_for(device)
    except OSError:
        return ""


def _wait_for_workers(server: OwnForkServer) -> None:
    """Take no more runs, and wait for the end of those that there are; a second Ctrl-C ends it."""
    if not retire(server.name):
        return
    told = time.monotonic() + 1.0
    while server.lives:
        if time.monotonic() > told:
            _say(
                "ends when the runs have ended that have workers of it; Ctrl-C again ends those "
                "workers now",
            )
            told = float("inf")
        time.sleep(LOOK_SECONDS)


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        typer.echo(text, err=True)
