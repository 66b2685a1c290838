"""A head for tests that run on a pretended one and on a real one alike.

On a stage a test puts a play: one driver, which does what the test says.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rlhf_api.report import StatusReport
from rlhf_operator.clients.head.addresses import Address
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.head.http_head import HttpHeads

from .awaited import PlainHead, now, place
from .direct_client import DirectClient
from .fake_head import FakeHead, FakeHeads

TOKEN = "token-of-the-cluster-0123456789"


class Play(Protocol):
    """One driver, directed by a test."""

    id: str
    head: PlainHead
    command: list[str]
    """What to submit; the driver tells the words after the first ones."""

    def seen(self) -> tuple[list[str], Mapping[str, str]]:
        """The last words of the command and the environment that it was started with."""
        ...

    def serve(self, report: StatusReport) -> None:
        """From now on the driver serves this report."""
        ...

    def acknowledged(self) -> tuple[str, int] | None:
        """The report that was acknowledged: submission and sequence."""
        ...

    def end(self, code: int, output: str = "") -> None:
        """The driver writes something, and its process ends; -N: by signal N."""
        ...

    def on_stop(self, output: str | None) -> None:
        """What the driver writes when it is told to stop. None: it does not obey."""
        ...

    def patience_ends(self) -> None:
        """So much time passes that Ray kills a driver that does not obey."""
        ...


class Stage(Protocol):
    """A head, and who may put plays on it."""

    client: HttpClient
    jobs: Address

    def play(self, id: str, *words: str, token: str = TOKEN) -> Play:
        """A play whose driver was not submitted yet; `words` end its command."""
        ...

    def nowhere(self) -> PlainHead:
        """A head that does not answer."""
        ...


class FakePlay:
    """A play on a pretended head."""

    def __init__(self, id: str, words: tuple[str, ...], stage: FakeHead, head: PlainHead) -> None:
        self.id = id
        self.head = head
        self.command = ["driver", *words]
        self._stage = stage
        self._farewell: str | None = ""

    def seen(self) -> tuple[list[str], Mapping[str, str]]:
        self._begin()
        driver = self._stage.submissions[self.id]
        return shlex.split(driver.entrypoint.removeprefix("exec "))[1:], driver.environment

    def serve(self, report: StatusReport) -> None:
        self._begin()
        self._stage.submissions[self.id].report = report

    def acknowledged(self) -> tuple[str, int] | None:
        sequence = self._stage.submissions[self.id].acknowledged
        return None if sequence is None else (self.id, sequence)

    def end(self, code: int, output: str = "") -> None:
        self._begin()
        driver = self._stage.submissions[self.id]
        driver.output += output
        if not driver.state.has_ended:  # an acknowledgement ends it, too
            driver.end(code)

    def on_stop(self, output: str | None) -> None:
        self._begin()
        driver = self._stage.submissions[self.id]
        driver.stubborn = output is None
        driver.farewell = output

    def patience_ends(self) -> None:
        self._stage.submissions[self.id].kill()

    def _begin(self) -> None:
        if self._stage.submissions[self.id].state == "PENDING":
            self._stage.submissions[self.id].begin()


class FakeStage:
    """A pretended head."""

    def __init__(self, heads: FakeHeads, client: HttpClient) -> None:
        self._heads = heads
        self._head = heads.head("team", "job-0")
        self._head.token = TOKEN
        self.client = client
        self.jobs = heads.route.address(place("team", "job-0"), 8265, TOKEN)

    def play(self, id: str, *words: str, token: str = TOKEN) -> Play:
        head = HttpHeads(self._heads.route, self.client).head(place("team", "job-0"), token)
        return FakePlay(id, words, self._head, PlainHead(head))

    def nowhere(self) -> PlainHead:
        self._heads.head("team", "gone-0").go_down()
        return PlainHead(
            HttpHeads(self._heads.route, self.client).head(place("team", "gone-0"), TOKEN)
        )


@contextmanager
def fake_stage() -> Iterator[Stage]:
    """A pretended head; its drivers begin when their play says so."""
    with FakeHeads(begins_at_once=False) as heads:
        stage = FakeStage(heads, HttpClient())
        try:
            yield stage
        finally:
            now(stage.client.close())


@contextmanager
def direct_stage() -> Iterator[Stage]:
    """The same without a network between the head and who asks it."""
    with FakeHeads(begins_at_once=False, listens=False) as heads:
        yield FakeStage(heads, DirectClient(heads))
