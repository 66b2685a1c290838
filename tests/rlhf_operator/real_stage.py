"""The stage with a real head: Ray as a pod starts it, with a token; at the end nothing is left."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlhf_api.on_cluster import RAY_START_VARIABLE
from rlhf_api.report import StatusReport
from rlhf_operator.apply.build.pods import START_LIMITS
from rlhf_operator.apply.build.ray_cluster import START_PARAMETERS
from rlhf_operator.clients.head.addresses import Address
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.head.http_head import HttpHead
from rlhf_operator.clients.head.protocol import HeadUnreachable

from ..free_port import free_port
from ..heavy_starts import Heavy, count_start
from ..runs.cli import MARK, SHARED_MEMORY, Command
from ..waiting import wait_until
from .awaited import PlainHead, now
from .stage import TOKEN, Stage

READY_SECONDS = 240.0
ANSWER_SECONDS = 60.0
"""A real head on a busy machine is slow at its first submission."""
STOP_WAIT_SECONDS = 2
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


@contextmanager
def real_stage(folder: Path) -> Iterator[Stage]:
    """A real head, started as KubeRay starts one; at the end nothing is left of it."""
    count_start(Heavy.RAY)
    # Ray's sockets lie in its folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-") as temporary:
        port = free_port()
        command = _start_ray(port, Path(temporary), folder / "ray.log")
        stage = RealStage(port, folder)
        try:
            _run_first_driver(stage, command)
            yield stage
            command.process.send_signal(signal.SIGTERM)
            command.wait(READY_SECONDS)
            command.assert_no_leftovers()
        finally:
            now(stage.client.close())
            command.end()


def _run_first_driver(stage: RealStage, command: Command) -> None:
    """Run a driver on a head that has just been started, and check which processes the head has."""

    def has_ended() -> bool:
        return command.process.poll() is not None

    wait_until(lambda: has_ended() or _answers(stage), READY_SECONDS, "an answer of the head")
    assert not has_ended(), command.output
    first = stage.play("first")
    first.head.submit(first.id, first.command, {})
    wait_until(lambda: has_ended() or first.runs(), READY_SECONDS, "the first driver")
    assert not has_ended(), command.output
    first.end(0)
    commands = [" ".join(process.cmdline()) for process, _ in command.processes()]
    for needed in ("gcs_server", "raylet", "dashboard/agent.py"):
        assert any(needed in words for words in commands), commands
    for unused in ("log_monitor", "autoscaler", "ray.util.client"):
        assert not any(unused in words for words in commands), commands


def _start_ray(port: int, temporary: Path, log: Path) -> Command:
    mark = uuid.uuid4().hex
    environment = {
        **START_LIMITS,
        MARK: mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_SECONDS),
        "RAY_ADDRESS": "",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    options = {
        "port": 0,
        "num-cpus": 0,
        "no-monitor": True,
        "object-store-memory": 80_000_000,
        "include-log-monitor": START_PARAMETERS["include-log-monitor"],
        "dashboard-host": "127.0.0.1",
        "dashboard-port": port,
        # As in a pod, though any number of heads may be on this machine.
        **{name: free_port() for name in START_PARAMETERS if name.endswith("-port")},
        "metrics-export-port": free_port(),
        "min-worker-port": 0,
        "max-worker-port": 0,
        "temp-dir": temporary,
    }
    # As KubeRay writes them.
    words = [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()
    ]
    environment[RAY_START_VARIABLE] = shlex.join(["ray", "start", "--head", "--block", *words])
    before = frozenset(entry.name for entry in SHARED_MEMORY.iterdir())
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlhf_runtime.controller.ray_start"],
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
