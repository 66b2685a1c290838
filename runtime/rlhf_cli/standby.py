"""`rlhf standby`: libraries stay in memory between the runs of this machine."""

from __future__ import annotations

import signal
import time
from contextlib import closing

import typer

from rlhf_api.resources import Device
from rlhf_flow.planning.make_plan import local_devices
from rlhf_runtime.errors import ForkServerFailed
from rlhf_runtime.forkserver.client import ForkServer, wait_until_ready
from rlhf_runtime.forkserver.standing import name_for, stands
from rlhf_runtime.hooks import nothing

LOOK_SECONDS = 1.0
"""How often it is seen whether all is as it was."""


def standby_command() -> None:
    """Stand by until Ctrl-C or SIGTERM.

    Raises:
        ForkServerFailed: libraries cannot be imported, or the process that holds them has died.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    device = local_devices().device
    name, begin = name_for(device), time.monotonic()
    if stands(name):
        typer.echo("another `rlhf standby` stands by already", err=True)
        return
    try:
        with closing(ForkServer(device, name)) as server:
            if not wait_until_ready(name, nothing):
                raise ForkServerFailed(
                    "the libraries of workers were not imported: got an end of the process that "
                    "imports them; free memory, or see what python -c 'import torch, transformers, "
                    "vllm' says"
                )
            typer.echo(
                f"standing by after {time.monotonic() - begin:.1f} s: what `rlhf run` starts now "
                "on this machine imports nothing; Ctrl-C ends this",
                err=True,
            )
            _watch(server, device, name)
    except KeyboardInterrupt:
        typer.echo("stands by no more", err=True)


def _watch(server: ForkServer, device: Device, name: str) -> None:
    told = False
    while server.lives:
        if not told and name_for(device) != name:
            told = True
            typer.echo(
                "code or packages have changed: runs import by themselves until this is started "
                "again",
                err=True,
            )
        time.sleep(LOOK_SECONDS)
    raise ForkServerFailed(
        "the process that held the libraries has died: got its end while standing by; free memory "
        "and start it again (runs whose workers it had started go on, and import by themselves)"
    )
