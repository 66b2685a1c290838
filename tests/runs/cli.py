"""The real `rlhf` command in a process of its own, and what it leaves behind.

Every process that a command starts inherits its session and a mark in its environment: leftovers
are found by them. Workers of `rlhf run` are forked by `rlhf standby`, which serves one command at a
time here, unless a test says otherwise.
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

from ..heavy_starts import Heavy, count_start
from ..waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
USER_CODE = Path(__file__).parent / "user_code"
RLHF = Path(sys.executable).with_name("rlhf")
SHARED_MEMORY = Path("/dev/shm")
FOREIGN = ("libpod", "sem.mp-")
"""How names begin there that are never ours: podman's, which may build an image meanwhile, and
those of multiprocessing's pools, which operators leave that are killed by tests beside these."""
MARK = "RLHF_TEST_COMMAND"
STANDBY = {"RLHF_STANDBY": uuid.uuid4().hex}
"""Environment of the commands of this session, which share a fork server with nobody else."""
SHARED: list[psutil.Process] = []
"""The fork servers that stand by."""
BY_ITSELF = {"RLHF_STANDBY": uuid.uuid4().hex}
"""Environment of a command that shares none: it starts its own."""
STARTED_BY = {"run": Heavy.RUN, "standby": Heavy.FORK_SERVER, "export": Heavy.EXPORT}
"""Heavy process of a command, by its first word."""
LIMIT_SECONDS = 540.0
"""A run takes 20 to 30 s on two idle cores; a busy machine takes several times as long."""
LONGEST_SHOWN = 160
"""Characters of a process's command line."""
GONE_SECONDS = 30.0
"""How long processes and shared memory may take to vanish after the command's end."""


@dataclass
class Command:
    """A running `rlhf`."""

    process: subprocess.Popen[str]
    log: Path
    """Everything it wrote to stdout and stderr."""
    mark: str
    shared_memory: frozenset[str]
    """What /dev/shm held before."""
    started: float = field(default_factory=time.monotonic)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s:\n{self.output}") from None

    def wait_for_text(self, text: str, after: str = "") -> None:
        """Until it has written something, after another text; fails if it ends before that."""

        def written() -> bool:
            ended = self.process.poll() is not None
            if text in (self.output.partition(after)[2] if after else self.output):
                return True
            assert not ended, f"ended without writing {text!r}:\n{self.output}"
            return False

        wait_until(written, LIMIT_SECONDS, f"{text!r} in\n{self.output}")

    def wait_for_file(self, file: Path) -> None:
        """Until a file exists; fails if the command ends before that."""

        def exists() -> bool:
            ended = self.process.poll() is not None
            assert file.exists() or not ended, f"ended without {file.name}:\n{self.output}"
            return file.exists()

        wait_until(exists, LIMIT_SECONDS, f"{file}\n{self.output}")

    def send(self, number: signal.Signals, to_group: bool = False) -> None:
        """Signal the process, or, as a terminal does, its whole group."""
        if to_group:
            os.killpg(self.process.pid, number)
        else:
            os.kill(self.process.pid, number)

    def leftovers(self) -> list[str]:
        """Processes that the command started and that still live, itself included."""
        return [shown for _, shown in self.processes()]

    def processes(self) -> list[tuple[psutil.Process, str]]:
        """What lives of the command, itself included, and the command lines."""
        forked = []
        for server in SHARED:
            with suppress(psutil.NoSuchProcess):
                forked += server.children()
        return started_by(self.process.pid, self.mark) + list(_living(forked))

    def orphaned_shared_memory(self) -> list[str]:
        """New entries of /dev/shm that no process has mapped or open any more."""
        names = (entry.name for entry in SHARED_MEMORY.iterdir())
        new = {name for name in names if not name.startswith(FOREIGN)} - self.shared_memory
        return sorted(new - _held_by_somebody()) if new else []

    def assert_gone(self, seconds: float = GONE_SECONDS) -> None:
        """Nothing of the command is left."""
        none_left(self.leftovers, seconds)
        none_left(self.orphaned_shared_memory, seconds)

    def end(self) -> None:
        """End whatever is left, for tests that failed."""
        kill(self.processes())
        self.process.wait()


def started_by(session: int, mark: str) -> list[tuple[psutil.Process, str]]:
    """Living processes of a session or with a mark in their environment, and their command lines.

    Most have both. One that begins a session of its own keeps the mark; one that changes its title
    may write over its environment, and keeps the session.
    """

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
                yield process, shown[:LONGEST_SHOWN]


@contextmanager
def standing_by(log: Path, **environment: str) -> Iterator[Command]:
    """`rlhf standby`, whose libraries are imported when this begins."""
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
        command.assert_gone()
    finally:
        command.end()
        for server in servers:
            SHARED.remove(server)


@contextmanager
def standing_by_for_others(folder: Path) -> Iterator[Mapping[str, str]]:
    """Variables with which commands of another folder of tests share one `rlhf standby`."""
    variables = {"RLHF_STANDBY": uuid.uuid4().hex}
    with standing_by(folder / "standby.log", **variables):
        yield variables


def kill(processes: Iterable[tuple[psutil.Process, str]]) -> None:
    """End them at once."""
    for process, _ in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def none_left(left: Callable[[], list[str]], seconds: float) -> None:
    """Wait until nothing is left; fails with what is left then."""
    try:
        wait_until(lambda: not left(), seconds, "an end")
    except AssertionError:
        raise AssertionError(f"left after {seconds:g} s: {left()}") from None


def _held_by_somebody() -> set[str]:
    held = set()
    for process in psutil.process_iter():
        try:
            paths = [Path(region.path) for region in process.memory_maps()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        held |= {path.name for path in paths if path.parent == SHARED_MEMORY}
    return held


def start(
    arguments: Sequence[object], log: Path, inside: Sequence[str] = (), **environment: str
) -> Command:
    """Start `rlhf` in a process group of its own; `inside` are words before the command."""
    if (kind := STARTED_BY.get(str(arguments[0]))) is not None:
        count_start(kind)
    mark = uuid.uuid4().hex
    before = frozenset(entry.name for entry in SHARED_MEMORY.iterdir())
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*inside, str(RLHF), *map(str, arguments)],
            cwd=log.parent,
            env=os.environ | STANDBY | {MARK: mark, "COLUMNS": "200"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_as_in_a_terminal,
        )
    return Command(process, log, mark, before)


def _as_in_a_terminal() -> None:
    """Let Ctrl-C arrive: a shell script starts its background commands with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Finished:
    """An `rlhf` that has ended; nothing of it is left."""

    code: int
    output: str
    folder: Path
    """The run's folder."""


def run(
    manifest: Path,
    folder: Path,
    *arguments: object,
    inside: Sequence[str] = (),
    **environment: str,
) -> Finished:
    """`rlhf run` to its end. Fails if a process or shared memory stays behind."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    words = ["run", manifest, "--output", folder, *arguments]
    command = start(words, log, inside, **environment)
    try:
        code = command.wait()
        command.assert_gone()
    finally:
        command.end()
    return Finished(code, command.output, folder)
