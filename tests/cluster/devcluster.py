"""A developer cluster in a state folder of its own, driven by the scripts that people use."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "tools" / "devcluster"


@dataclass(frozen=True)
class DevCluster:
    """What `make cluster-up`, `cluster-status` and `cluster-down` do to one state folder."""

    state: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that differ from this process's own."""
    scripts: Path = SCRIPTS

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A script's outcome, whatever it is; standard error is part of its output."""
        place = {"DEVCLUSTER_STATE": str(self.state), "DEVCLUSTER_PORT": "auto"}
        return subprocess.run(
            [str(self.scripts / script), *arguments],
            env={**os.environ, **place, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lacks(self, *arguments: str) -> str:
        """What the machine lacks to start what is asked for at once, and what to do; or nothing."""
        checked = self.run("up.sh", "--check", *arguments)
        return "" if checked.returncode == 0 else checked.stdout

    def up(self, *arguments: str) -> str:
        """Start what does not run; what it printed."""
        return output_of(self.run("up.sh", *arguments))

    def down(self) -> str:
        return output_of(self.run("down.sh"))

    def pids(self) -> dict[str, int]:
        """The process of each part that was started."""
        files = sorted((self.state / "pids").iterdir())
        return {file.name: int(file.read_text().split()[0]) for file in files}

    @contextmanager
    def frozen(self, part: str) -> Iterator[None]:
        """One of its parts stands still meanwhile, as if its machine were lost."""
        process = self.pids()[part]
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def processes(self) -> list[int]:
        """Every process of this machine whose command line names the state folder."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
            except OSError:
                continue
            if os.fsencode(self.state) + b"/" in command:
                found.append(int(folder.name))
        return found


class CommandFailed(RuntimeError):
    """A program ended with an error; the text has what it printed."""


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """What a program printed; an error that shows it when the program failed."""
    if done.returncode != 0:
        raise CommandFailed(f"{done.args}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout
