"""The README's section on Kubernetes, typed line by line; other tests use what it installs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..cluster.devcluster import DevCluster
from ..waiting import wait_until

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## On Kubernetes\n(?P<text>.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```bash\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
"""What `make e2e` would hand on to the `make` of the README."""


def typed() -> str:
    """Everything that the section tells people to type, in order."""
    section = SECTION.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert section is not None
    return "".join(block["lines"] for block in BLOCK.finditer(section["text"]))


@dataclass(frozen=True)
class Walkthrough:
    """A shell that is typed into."""

    shell: subprocess.Popen[str]
    log: Path

    @property
    def output(self) -> str:
        """What it has shown so far, each command after a plus."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, command: str, seconds: float) -> None:
        """Until a command is reached; fails if the walk ends before that."""

        def reached() -> bool:
            ended = self.shell.poll() is not None
            assert not ended or f"\n+ {command}\n" in self.output, self.output
            return f"\n+ {command}\n" in self.output

        wait_until(reached, seconds, f"the README's `{command}`")

    def wait(self, seconds: float) -> None:
        """Until all is typed; fails if a command has failed."""
        assert self.shell.wait(seconds) == 0, self.output


@contextmanager
def walk(cluster: DevCluster, log: Path) -> Iterator[Walkthrough]:
    """Begin it; at the end nothing is typed any more."""
    place = {"DEVCLUSTER_STATE": str(cluster.state), "DEVCLUSTER_PORT": "auto"}
    own = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    with log.open("w") as stream:
        shell = subprocess.Popen(
            ["bash", "-exo", "pipefail", "-c", typed()],
            cwd=ROOT,
            env={**own, **place},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield Walkthrough(shell, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
