"""The operator as a process of its own, at a cluster whose heads are pretended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3
import yaml

from ..forked_programs import ForkedProcess, Program, start_copy
from ..free_port import free_port
from ..heavy_starts import Heavy, count_start
from ..waiting import wait_until

PROGRAM = ("-m", "rlhf_operator")
"""As in an image."""
START_SECONDS = 60.0


@dataclass
class OperatorProcess:
    """`python -m rlhf_operator`, which a test may kill and start again."""

    kubeconfig: Path
    folder: Path
    settings: Mapping[str, Any]
    has_key_file: bool = True
    """Whether it is given a key; else it is as in a pod, with a Secret and a Lease."""
    port: int = field(default_factory=free_port)
    program: tuple[str, ...] = ()
    """What Python runs instead of a copy of a process that has imported the operator. It takes the
    same words at its end."""
    constants: Mapping[str, float] = field(default_factory=dict)
    """Values of the operator's constants, by `module:NAME`; not for a program."""
    process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def start(self) -> None:
        """Start it, and wait until it watches."""
        assert self.process is None
        count_start(Heavy.OPERATOR)
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.yaml"
        config.write_text(yaml.safe_dump({"port": self.port, "logFormat": "text", **self.settings}))
        words = ["--config", str(config), "--kubeconfig", str(self.kubeconfig)]
        words += ["--key-file", str(self.folder / "key")] if self.has_key_file else []
        if self.program:
            self.process = self._start_program(words)
        else:
            self.process = self._start_copy(words)
        wait_until(self.is_ready, START_SECONDS, "a ready operator")

    def _start_copy(self, words: Sequence[str]) -> ForkedProcess:
        program = Program(
            "rlhf_operator.__main__:main",
            [str(self.folder / "rlhf_operator"), *words],
            str(self.folder),
            str(self.log),
            dict(os.environ),
            dict(self.constants),
        )
        return start_copy(program, ("rlhf_operator.__main__",))

    def _start_program(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *self.program, *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def log(self) -> Path:
        return self.folder / "operator.log"

    def is_ready(self) -> bool:
        """Whether it watches; fails if it has ended."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return self.get("/readyz")[0] == 200

    def get(self, path: str) -> tuple[int, str]:
        """What it serves; 0: nothing."""
        try:
            answer = urllib3.request(
                "GET", f"http://127.0.0.1:{self.port}{path}", retries=False, timeout=5.0
            )
        except urllib3.exceptions.HTTPError:
            return 0, ""
        return answer.status, answer.data.decode()

    def metric(self, line: str) -> float:
        """The value of one series, by everything before it on its line."""
        _, text = self.get("/metrics")
        return next(
            (float(each.rsplit(" ", 1)[1]) for each in text.splitlines() if each.startswith(line)),
            0.0,
        )

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.process = None
        return code

    def kill(self) -> None:
        """As a node that dies would."""
        self.stop(signal.SIGKILL)


def run_to_end(kubeconfig: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """An operator that is expected to end by itself."""
    count_start(Heavy.OPERATOR)
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({"port": free_port(), "logFormat": "text"}))
    command = [sys.executable, "-m", "rlhf_operator", "--config", str(config)]
    command += ["--kubeconfig", str(kubeconfig), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
