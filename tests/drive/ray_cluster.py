"""A Ray cluster as KubeRay makes one: a head without devices, workers that come and go, a token.

Head and workers are raylets of this machine, at the address of its network interface. What a pod
would hold together, a mark in the environment does.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rlhf_api.on_cluster import FINAL_REPORT, RAY_START_VARIABLE, pool_resource
from rlhf_api.report import StatusReport
from rlhf_operator.apply.build.pods import START_LIMITS
from rlhf_operator.apply.build.ray_cluster import START_PARAMETERS

from ..free_port import free_port
from ..heavy_starts import Heavy, count_start
from ..runs.cli import LEFTOVER_SECONDS, LIMIT_SECONDS, MARK, kill, none_left, started_by
from ..waiting import wait_until

OBJECT_STORE_BYTES = 100_000_000
ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}


def own_address() -> str:
    """An address of this machine that is not loopback."""
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family is socket.AF_INET and name != "lo":
                return str(entry.address)
    raise AssertionError("this machine has no network interface besides loopback")


@dataclass
class Node:
    """A raylet and all that it has started."""

    session: int
    mark: str

    def processes(self) -> list[tuple[psutil.Process, str]]:
        """What lives of it, and the command lines."""
        return started_by(self.session, self.mark)

    def kill_raylet(self) -> None:
        """As a machine that is lost: without a word."""
        (raylet,) = [process for process, _ in self.processes() if process.name() == "raylet"]
        raylet.kill()

    def assert_without_actors(self) -> None:
        """Nothing that works for a job is left; Ray's own helpers end with their pod."""

        def actors() -> list[str]:
            names = [shown for _, shown in self.processes() if shown.startswith("ray::")]
            return [name for name in names if not name.endswith("Agent")]

        none_left(actors, LEFTOVER_SECONDS)

    def end(self) -> None:
        kill(self.processes())

    def assert_gone(self) -> None:
        none_left(lambda: [shown for _, shown in self.processes()], LEFTOVER_SECONDS)


@dataclass
class RayCluster:
    """The head and its workers."""

    folder: Path
    address: str = field(default_factory=own_address)
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        ports = [free_port(self.address) for _ in range(3)]
        self.gcs_port, self.dashboard_port, self.report_port = ports
        self.temporary = tempfile.mkdtemp(prefix="rlhf-ray-")  # names of sockets must be short

    def start_head(self) -> Node:
        node = self._start(
            "--head",
            "--num-cpus=0",
            "--num-gpus=0",
            f"--port={self.gcs_port}",
            f"--dashboard-host={self.address}",
            f"--dashboard-port={self.dashboard_port}",
            f"--temp-dir={self.temporary}",
        )
        wait_until(self._answers, LIMIT_SECONDS, "the head's Jobs API")
        return node

    def start_worker(self, cpus: int, pool: str = "cpu") -> Node:
        return self._start(
            f"--address={self.address}:{self.gcs_port}",
            f"--num-cpus={cpus}",
            f"--resources={json.dumps({pool_resource(pool): 1})}",
        )

    def submit(self, submission: str, command: Sequence[object]) -> None:
        count_start(Heavy.RUN)
        body = {"entrypoint": " ".join(map(str, command)), "submission_id": submission}
        status, _ = self._ask("POST", self.dashboard_port, "/api/jobs/", body)
        assert status == 200, status

    def stop(self, submission: str) -> None:
        status, _ = self._ask("POST", self.dashboard_port, f"/api/jobs/{submission}/stop", {})
        assert status == 200, status

    def state(self, submission: str) -> dict[str, Any]:
        status, text = self._ask("GET", self.dashboard_port, f"/api/jobs/{submission}")
        assert status == 200, (status, text)
        state: dict[str, Any] = json.loads(text)
        return state

    def wait_for_end(self, submission: str) -> dict[str, Any]:
        wait_until(
            lambda: self.state(submission)["status"] in ENDED,
            LIMIT_SECONDS,
            f"an end of {submission}",
        )
        return self.state(submission)

    def log(self, submission: str) -> str:
        status, text = self._ask("GET", self.dashboard_port, f"/api/jobs/{submission}/logs")
        return str(json.loads(text)["logs"]) if status == 200 else ""

    def last_report(self, submission: str) -> StatusReport:
        """The report on the last line of a submission's log."""
        *_, last = self.log(submission).splitlines()
        assert last.startswith(FINAL_REPORT), last
        return StatusReport.model_validate_json(last.removeprefix(FINAL_REPORT))

    def report(self, token: str | None = None) -> StatusReport | int:
        """What the driver reports now, or the status of the answer; 0: there is none."""
        status, text = self._ask("GET", self.report_port, "/report", token=token)
        return StatusReport.model_validate_json(text) if status == 200 else status

    def acknowledge(self, report: StatusReport) -> int:
        body = {"submissionId": report.submission_id, "sequence": report.sequence}
        return self._ask("POST", self.report_port, "/acknowledge", body)[0]

    def end(self) -> None:
        for node in reversed(self.nodes):
            node.end()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _start(self, *arguments: str) -> Node:
        count_start(Heavy.RAY)
        mark = uuid.uuid4().hex
        # As in pods, though all nodes are on this machine.
        ports = {name: free_port(self.address) for name in START_PARAMETERS if "port" in name}
        parameters = START_PARAMETERS | {name: str(port) for name, port in ports.items()}
        words = [
            "ray",
            "start",
            f"--node-ip-address={self.address}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            *(f"--{name}={value}" for name, value in parameters.items()),
            *arguments,
        ]
        environment = os.environ | {
            **START_LIMITS,
            RAY_START_VARIABLE: shlex.join(words),
            MARK: mark,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_JOB_STOP_WAIT_TIME_S": "120",
        }
        log = self.folder / f"node-{len(self.nodes) + 1}.log"
        with log.open("w") as stream:
            started = subprocess.Popen(
                [sys.executable, "-P", "-m", "rlhf_runtime.controller.ray_start"],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = Node(started.pid, mark)
        self.nodes.append(node)
        assert started.wait() == 0, log.read_text()
        return node

    def _answers(self) -> bool:
        status, _ = self._ask("GET", self.dashboard_port, "/api/jobs/")
        return status == 200

    def _ask(
        self, method: str, port: int, path: str, body: object = None, token: str | None = None
    ) -> tuple[int, str]:
        request = urllib.request.Request(
            f"http://{self.address}:{port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token if token is None else token}",
                "Content-Type": "application/json",
            },
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """A cluster whose head runs; nothing of it is left afterwards."""
    cluster = RayCluster(folder)
    try:
        cluster.start_head()
        yield cluster
    finally:
        cluster.end()
    for node in cluster.nodes:
        node.assert_gone()
