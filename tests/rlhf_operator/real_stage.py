"""The stage that is a real head: `ray start`, with a token, and nothing left of it at the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlhf_api.report import StatusReport
from rlhf_operator.clients.head.addresses import Address
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.head.http_head import HttpHead
from rlhf_operator.clients.head.protocol import HeadUnreachable

from ..heavy_starts import Heavy, count_start
from ..runs.cli import MARK, SHARED_MEMORY, Command
from ..waiting import wait_until
from .awaited import PlainHead, now
from .stage import TOKEN, Stage

READY_SECONDS = 240.0
ANSWER_SECONDS = 60.0
"""A real head on a busy machine is slow at its first submission."""
STOP_WAIT_SECONDS = 2
STARTS = 3
"""Attempts to start Ray: its raylet gives up when its agents need more than 15 s, as they may on a
busy machine."""
DRIVER = Path(__file__).with_name("scripted_driver.py")


class RealPlay:
    """A play in a process that Ray starts; it is directed by files."""

    def __init__(
        self, id: str, words: tuple[str, ...], folder: Path, port: int, head: PlainHead
    ) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "farewell").touch()
        self.id = id
        self.head = head
        self.command = [sys.executable, str(DRIVER), str(folder), str(port), *words]
        self._folder = folder

    def seen(self) -> tuple[list[str], Mapping[str, str]]:
        self._begin()
        words, environment = json.loads((self._folder / "seen.json").read_text(encoding="utf-8"))
        return words, environment

    def serve(self, report: StatusReport) -> None:
        self._begin()
        self._put("report.json", report.model_dump_json(by_alias=True))

    def acknowledged(self) -> tuple[str, int] | None:
        file = self._folder / "acknowledged.json"
        if not file.exists():
            return None
        said = json.loads(file.read_text(encoding="utf-8"))
        return said["submissionId"], said["sequence"]

    def end(self, code: int, output: str = "") -> None:
        self._begin()
        self._put("end.json", json.dumps({"code": code, "output": output}))

    def on_stop(self, output: str | None) -> None:
        self._begin()
        if output is None:
            (self._folder / "stubborn").touch()
        else:
            self._put("farewell", output)

    def patience_ends(self) -> None:
        terminated = self._folder / "terminated"
        wait_until(terminated.exists, READY_SECONDS, "a SIGTERM")

    def runs(self) -> bool:
        """Return whether the process has begun."""
        return (self._folder / "seen.json").exists()

    def _begin(self) -> None:
        wait_until(self.runs, READY_SECONDS, f"a process of {self.id}")

    def _put(self, name: str, text: str) -> None:
        half = self._folder / f"{name}.half"
        half.write_text(text, encoding="utf-8")
        half.rename(self._folder / name)


class RealStage:
    """The head that `ray start` made."""

    def __init__(self, port: int, folder: Path) -> None:
        self._folder = folder
        self._ports: dict[str, int] = {}
        self.client = HttpClient(answer_seconds=ANSWER_SECONDS)
        self._url = f"http://127.0.0.1:{port}"
        self.jobs = _address(self._url, TOKEN)

    def play(self, id: str, *words: str, token: str = TOKEN) -> RealPlay:
        port = self._ports.setdefault(id, free_port())
        report = _address(f"http://127.0.0.1:{port}", token)
        head = HttpHead(self.client, _address(self._url, token), report)
        return RealPlay(id, words, self._folder / id, port, PlainHead(head))

    def nowhere(self) -> PlainHead:
        nobody = _address(f"http://127.0.0.1:{free_port()}", TOKEN)
        return PlainHead(HttpHead(self.client, nobody, nobody))


def _address(url: str, token: str) -> Address:
    return Address(url, {"Authorization": f"Bearer {token}"})


def free_port() -> int:
    """A port of this machine where nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def real_stage(folder: Path) -> Iterator[Stage]:
    """A real head, started as KubeRay starts one; at the end nothing is left of it."""
    count_start(Heavy.RAY)  # further attempts are the machine's, not the test's
    # Ray's sockets lie in its folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-") as temporary:
        stage, command = _start_working_head(folder, Path(temporary))
        try:
            yield stage
            command.process.terminate()
            command.wait(READY_SECONDS)
            command.assert_no_leftovers()
        finally:
            now(stage.client.close())
            command.end()


def _start_working_head(folder: Path, temporary: Path) -> tuple[RealStage, Command]:
    """Start Ray until it has run a driver.

    Raises:
        AssertionError: every attempt ended before that.
    """
    for number in range(STARTS):
        port = free_port()
        command = _start_ray(port, temporary / str(number), folder / f"ray-{number}.log")
        stage, works = RealStage(port, folder), False
        try:
            works = _has_run_a_driver(stage, command)
            if works:
                return stage, command
        finally:
            if not works:
                now(stage.client.close())
                command.end()
    raise AssertionError(command.output)


def _has_run_a_driver(stage: RealStage, command: Command) -> bool:
    """Wait for a first driver; False if Ray ended before it."""

    def ended() -> bool:
        return command.process.poll() is not None

    wait_until(lambda: ended() or _answers(stage), READY_SECONDS, "an answer of the head")
    first = stage.play("first")
    try:
        first.head.submit(first.id, first.command, {})
    except HeadUnreachable:
        assert ended(), command.output
    wait_until(lambda: ended() or first.runs(), READY_SECONDS, "the first driver")
    if ended():
        return False
    first.end(0)
    return True


def _start_ray(port: int, temporary: Path, log: Path) -> Command:
    mark = uuid.uuid4().hex
    environment = {
        MARK: mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_SECONDS),
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(READY_SECONDS),
        "RAY_ADDRESS": "",
    }
    options = {
        "port": 0,
        "num-cpus": 0,
        "object-store-memory": 80_000_000,
        "include-log-monitor": False,
        "dashboard-host": "127.0.0.1",
        "dashboard-port": port,
        "dashboard-agent-listen-port": 0,
        "dashboard-agent-grpc-port": 0,
        "runtime-env-agent-port": 0,
        "metrics-export-port": 0,
        "ray-client-server-port": free_port(),
        "min-worker-port": 0,
        "max-worker-port": 0,
        "temp-dir": temporary,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    ray = Path(sys.executable).with_name("ray")
    before = frozenset(entry.name for entry in SHARED_MEMORY.iterdir())
    with log.open("w") as stream:
        process = subprocess.Popen(
            [str(ray), "start", "--head", "--block", "--disable-usage-stats", *words],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    return Command(process, log, mark, before)


def _answers(stage: RealStage) -> bool:
    try:
        stage.play("ready").head.submissions()
    except HeadUnreachable:
        return False
    return True
