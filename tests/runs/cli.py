"""The real `rlhf` command in a process of its own, and its leftovers.

Workers of `rlhf run` are forked by `rlhf standby`, which serves one command at a time here,
unless a test says otherwise.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ..forked_programs import ForkedProcess, Program, start_copy
from ..heavy_starts import Heavy, count_start
from ..waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
USER_CODE = Path(__file__).parent / "user_code"
RLHF = Path(sys.executable).with_name("rlhf")
# Standby servers tell interpreters apart by their paths, and a folder may be a link.
PYTHON = str(RLHF.parent.resolve() / "python")
"""Interpreter of the command's script."""
SHARED_MEMORY = Path("/dev/shm")
# Podman may build an image meanwhile. Killed operators of other tests leave semaphores of pools.
FOREIGN = ("libpod", "sem.mp-")
"""Prefixes of shared memory that is never ours."""
MARK = "RLHF_TEST_COMMAND"
STANDBY = {"RLHF_STANDBY": uuid.uuid4().hex}
"""Environment of this session's commands, which share a fork server."""
SHARED: list[psutil.Process] = []
"""Running fork servers of `rlhf standby`."""
BY_ITSELF = {"RLHF_STANDBY": uuid.uuid4().hex}
"""Environment of a command that starts its own fork server."""
STARTED_BY = {
    "run": Heavy.RUN,
    "evaluate": Heavy.RUN,
    "standby": Heavy.FORK_SERVER,
    "export": Heavy.EXPORT,
}
"""Heavy process of a command, by its first word."""
DRIVERS_MODULES = (
    *("rlhf_cli.app", "rlhf_cli.train", "rlhf_cli.local_run", "rlhf_runtime.controller.job_run"),
    *("rlhf_runtime.telemetry.tensorboard_tracker", "tensorboard", "math_verify", "safetensors"),
    *("tokenizers", "boto3"),
)
"""Imported before the drivers of runs are copied. Commands with an environment of their own, and
those of guides and benchmarks, are processes from the start."""
# A run takes 20 to 30 s on two idle cores, and several times as long on a busy machine.
LIMIT_SECONDS = 540.0
MAX_SHOWN = 160
"""Limit of characters of a process's command line."""
LEFTOVER_SECONDS = 30.0
"""Limit of the time in which processes and shared memory vanish after the command's end."""


@dataclass
class Command:
    """A running `rlhf`."""

    process: subprocess.Popen[str] | ForkedProcess
    log: Path
    """Output on stdout and stderr."""
    mark: str
    shared_memory: frozenset[str]
    """Entries of /dev/shm before the start."""
    started: float = field(default_factory=time.monotonic)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        """Wait for the end; returns the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s:\n{self.output}") from None

    def wait_for_text(self, text: str, after: str = "") -> None:
        """Wait for output, after another text; fails if the command ends before."""

        def written() -> bool:
            ended = self.process.poll() is not None
            if text in (self.output.partition(after)[2] if after else self.output):
                return True
            assert not ended, f"ended without writing {text!r}:\n{self.output}"
            return False

        wait_until(written, LIMIT_SECONDS, f"{text!r} in\n{self.output}")

    def wait_for_file(self, file: Path) -> None:
        """Wait for a file; fails if the command ends before."""

        def exists() -> bool:
            ended = self.process.poll() is not None
            assert file.exists() or not ended, f"ended without {file.name}:\n{self.output}"
            return file.exists()

        wait_until(exists, LIMIT_SECONDS, f"{file}\n{self.output}")

    def send(self, number: signal.Signals, to_group: bool = False) -> None:
        """Signal the process, or its group, as a terminal does."""
        if to_group:
            os.killpg(self.process.pid, number)
        else:
            os.kill(self.process.pid, number)

    def leftovers(self) -> list[str]:
        """Command lines of living processes of the command, itself included."""
        return [shown for _, shown in self.processes()]

    def processes(self) -> list[tuple[psutil.Process, str]]:
        """Living processes of the command, itself included, with their command lines."""
        forked = []
        for server in SHARED:
            with suppress(psutil.NoSuchProcess):
                forked += server.children()
        return started_by(self.process.pid, self.mark) + list(_living(forked))

    def orphaned_shared_memory(self) -> list[str]:
        """New entries of /dev/shm that no process has mapped."""
        names = (entry.name for entry in SHARED_MEMORY.iterdir())
        new = {name for name in names if not name.startswith(FOREIGN)} - self.shared_memory
        return sorted(new - _mapped_memory()) if new else []

    def assert_no_leftovers(self, seconds: float = LEFTOVER_SECONDS) -> None:
        """Check that processes and shared memory of the command vanish."""
        none_left(self.leftovers, seconds)
        none_left(self.orphaned_shared_memory, seconds)

    def end(self) -> None:
        """End leftovers, for tests that failed."""
        kill(self.processes())
        self.process.wait()


def started_by(session: int, mark: str) -> list[tuple[psutil.Process, str]]:
    """Living processes of a session or with a mark in their environment, with command lines."""
    # All processes of a command inherit both. One that begins a session of its own keeps the mark;
    # one that changes its title may write over its environment, and keeps the session.

    def is_meant(process: psutil.Process) -> bool:
        with suppress(ProcessLookupError, psutil.Error):
            return os.getsid(process.pid) == session or process.environ().get(MARK) == mark
        return False

    return list(_living(filter(is_meant, psutil.process_iter())))


def _living(processes: Iterable[psutil.Process]) -> Iterator[tuple[psutil.Process, str]]:
    for process in processes:
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                shown = " ".join(process.cmdline()).strip() or process.name()
                yield process, shown[:MAX_SHOWN]


@contextmanager
def standing_by(log: Path, **environment: str) -> Iterator[Command]:
    """Run `rlhf standby`; enters when it has imported its libraries."""
    command = start(["standby"], log, **environment)
    servers = []
    try:
        command.wait_for_text("ready after")
        servers = psutil.Process(command.process.pid).children()
        SHARED.extend(servers)
        yield command
        if command.process.poll() is None:
            command.send(signal.SIGINT)
            assert command.wait() == 0, command.output
        command.assert_no_leftovers()
    finally:
        command.end()
        for server in servers:
            SHARED.remove(server)


@contextmanager
def standing_by_for_others(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run `rlhf standby` for tests of another folder; yields variables of its commands."""
    variables = {"RLHF_STANDBY": uuid.uuid4().hex}
    with standing_by(folder / "standby.log", **variables):
        yield variables


def kill(processes: Iterable[tuple[psutil.Process, str]]) -> None:
    """Kill processes."""
    for process, _ in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def none_left(left: Callable[[], list[str]], seconds: float) -> None:
    """Wait until nothing is left; fails with a list of leftovers."""
    try:
        wait_until(lambda: not left(), seconds, "an end")
    except AssertionError:
        raise AssertionError(f"left after {seconds:g} s: {left()}") from None


def _mapped_memory() -> set[str]:
    """Names of shared memory that some process has mapped."""
    names = set()
    for process in psutil.process_iter():
        try:
            paths = [Path(region.path) for region in process.memory_maps()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        names |= {path.name for path in paths if path.parent == SHARED_MEMORY}
    return names


def start(
    arguments: Sequence[object], log: Path, inside: Sequence[str] = (), **environment: str
) -> Command:
    """Start `rlhf` in a process group of its own; `inside` are words before the command."""
    if (kind := STARTED_BY.get(str(arguments[0]))) is not None:
        count_start(kind)
    mark = uuid.uuid4().hex
    before = frozenset(entry.name for entry in SHARED_MEMORY.iterdir())
    words = [str(RLHF), *map(str, arguments)]
    variables = os.environ | STANDBY | {MARK: mark, "COLUMNS": "200"} | environment
    log.write_text("")
    if words[1] in ("run", "evaluate") and not inside and not environment:
        program = Program(
            "rlhf_cli.app:main", words, str(log.parent), str(log), variables, has_own_session=True
        )
        return Command(start_copy(program, DRIVERS_MODULES, PYTHON), log, mark, before)
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*inside, *words],
            cwd=log.parent,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_as_in_a_terminal,
        )
    return Command(process, log, mark, before)


def _as_in_a_terminal() -> None:
    # A shell script starts its background commands with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Finished:
    """A finished `rlhf` without leftovers."""

    code: int
    output: str
    folder: Path
    """Folder of the run."""


def run(
    manifest: Path,
    folder: Path,
    *arguments: object,
    inside: Sequence[str] = (),
    **environment: str,
) -> Finished:
    """Run `rlhf run` to its end; fails on leftovers."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    words = ["run", manifest, "--output", folder, *arguments]
    command = start(words, log, inside, **environment)
    try:
        code = command.wait()
        command.assert_no_leftovers()
    finally:
        command.end()
    return Finished(code, command.output, folder)
