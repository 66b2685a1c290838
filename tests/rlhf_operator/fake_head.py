"""Pretended heads for tests of the operator: no Ray, no pods, and no time but the test's.

`FakeHeads` is one HTTP server that plays the head of every RayCluster: Ray's Jobs API, the end of
logs, and the report of whatever driver runs. The operator finds it by `FakeHeads.template`. It
passes the same contract tests as `ray start --head`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType

from rlhf_api.exits import ExitCode
from rlhf_operator.clients.head.addresses import ByTemplate
from rlhf_operator.clients.head.protocol import SubmissionState

from .fake_driver import FakeDriver
from .fake_head_server import FakeHeadServer, Reply, Request, answer

LINGER_SECONDS = 60.0
"""How long a driver that runs by the clock waits for an acknowledgement."""


@dataclass(frozen=True)
class AutoRun:
    """Every driver runs by the clock, through all its steps, and ends with 0."""

    steps: int
    seconds: float
    """From its submission to its final report."""


class FakeHead:
    """The head of one RayCluster, as a test wants it to be. FairThreadPool may share it."""

    def __init__(
        self,
        auto: AutoRun | None = None,
        begins_at_once: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.RLock()
        self.auto = auto
        self.begins_at_once = begins_at_once
        """Whether drivers run as soon as they are submitted; else the test says `begin`."""
        self.total_steps = auto.steps if auto else 10
        self.stubborn = False
        """Whether drivers go on when they are told to stop."""
        self.token: str | None = None
        """The one that it takes; a new head takes the first that it sees."""
        self.is_down = False
        self.submissions: dict[str, FakeDriver] = {}
        self.submitted: list[str] = []
        """All submissions ever, also those that were forgotten."""
        self._clock = clock
        self.submitted_at: dict[str, float] = {}
        """By its clock."""

    @property
    def driver(self) -> FakeDriver:
        """The one that was submitted last."""
        with self.lock:
            assert self.submissions, "nothing was submitted to this head"
            return list(self.submissions.values())[-1]

    def begin(self) -> None:
        """The last driver's process starts."""
        with self.lock:
            self.driver.begin()

    def advance(
        self,
        step: int,
        phase: str = "Train",
        checkpoint: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """The last driver reports so many steps."""
        with self.lock:
            self.driver.advance(step, phase, checkpoint, metrics)

    def finish(
        self,
        exit_code: ExitCode = ExitCode.DONE,
        reason: str | None = None,
        message: str = "",
        lingers: bool = True,
    ) -> None:
        """The last driver writes its final report, and ends when it was acknowledged."""
        with self.lock:
            self.driver.finish(exit_code, reason, message, lingers)

    def end(self, exit_code: int) -> None:
        """The last driver's process is gone, without another word."""
        with self.lock:
            self.driver.end(exit_code)

    def restart(self) -> None:
        """A new pod plays the head: it knows of no submission, and takes its cluster's token."""
        with self.lock:
            self.submissions.clear()
            self.token = None

    def go_down(self) -> None:
        """Requests get no answer any more; drivers live on."""
        self.is_down = True

    def come_back(self) -> None:
        """Requests are answered again."""
        self.is_down = False

    def submit(self, id: str, entrypoint: str, environment: Mapping[str, str]) -> bool:
        """Whether the id was free."""
        with self.lock:
            if id in self.submissions:
                return False
            driver = FakeDriver(id, entrypoint, environment, self.total_steps, self.stubborn)
            self.submissions[id] = driver
            self.submitted.append(id)
            self.submitted_at[id] = self._clock()
            if self.begins_at_once or self.auto:
                driver.begin()
            return True

    def serving(self) -> FakeDriver | None:
        """The driver that serves a report now."""
        with self.lock:
            serving = [each for each in self.submissions.values() if each.report is not None]
            return serving[-1] if serving else None

    def catch_up(self) -> None:
        """What drivers that run by the clock have done by now."""
        auto = self.auto
        if auto is None:
            return
        with self.lock:
            for driver in self.submissions.values():
                if driver.state is SubmissionState.RUNNING:
                    self._run(driver, auto, self._clock() - self.submitted_at[driver.id])

    @staticmethod
    def _run(driver: FakeDriver, auto: AutoRun, seconds: float) -> None:
        if driver.report is not None and driver.report.final:
            if seconds >= auto.seconds + LINGER_SECONDS:
                driver.end(ExitCode.DONE)
            return
        step = min(auto.steps, int(auto.steps * seconds / auto.seconds)) if seconds else 0
        if driver.report is None or step > driver.report.step:
            metrics = {"reward_mean": step / auto.steps}
            driver.advance(step, checkpoint=step or None, metrics=metrics)
        if step == auto.steps:
            driver.finish()


class FakeHeads:
    """All heads of a pretended world, behind one port of this machine. A context manager."""

    def __init__(
        self,
        auto: AutoRun | None = None,
        begins_at_once: bool = True,
        clock: Callable[[], float] = time.monotonic,
        listens: bool = True,
    ) -> None:
        """Heads that do not listen at a port answer nobody but `DirectClient`."""
        self._lock = threading.Lock()
        self._heads: dict[tuple[str, str], FakeHead] = {}
        self._auto = auto
        self._begins_at_once = begins_at_once
        self._clock = clock
        self.requests = 0
        """How many were made."""
        self._server = FakeHeadServer(self.answer) if listens else None

    @property
    def template(self) -> str:
        """The address of any head's port, with {namespace}, {cluster} and {port} in it."""
        url = self._server.url if self._server else "http://heads"
        return f"{url}/{{namespace}}/{{cluster}}/{{port}}"

    @property
    def route(self) -> ByTemplate:
        """The operator's way to these heads."""
        return ByTemplate(self.template)

    def head(self, namespace: str, cluster: str) -> FakeHead:
        """The head of a RayCluster; it is there as soon as somebody asks for it."""
        with self._lock:
            place = (namespace, cluster)
            if place not in self._heads:
                self._heads[place] = FakeHead(self._auto, self._begins_at_once, self._clock)
            return self._heads[place]

    def all(self) -> list[FakeHead]:
        """Every head that was ever asked for."""
        with self._lock:
            return list(self._heads.values())

    def close(self) -> None:
        """End the server; nothing answers any more."""
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> FakeHeads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def answer(self, request: Request) -> Reply | None:
        """What a head says. None: the connection ends without an answer."""
        self.requests += 1
        parts = request.path.split("/", 4)
        if len(parts) != 5:
            return Reply(HTTPStatus.NOT_FOUND, "not the address of a head")
        head = self.head(parts[1], parts[2])
        with head.lock:
            if head.is_down:
                return None
            head.catch_up()
            return answer(head, int(parts[3]), f"/{parts[4]}", request)
