"""Heads for tests that are not coroutines: each call waits for what it comes to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from rlhf_api.report import StatusReport
from rlhf_operator.clients.head.addresses import HeadPod
from rlhf_operator.clients.head.protocol import Head, Submission

T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine comes to. All of them share one event loop, as connections need it."""
    return _loop().run_until_complete(coroutine)


def place(namespace: str, cluster: str, ip: str | None = None) -> HeadPod:
    """Where the head of a cluster is that has one pod."""
    return HeadPod(namespace, cluster, f"{cluster}-head", ip)


@dataclass(frozen=True)
class PlainHead:
    """A head whose methods need not be awaited."""

    head: Head

    def submissions(self) -> tuple[Submission, ...]:
        return now(self.head.submissions())

    def submit(self, id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        now(self.head.submit(id, command, environment))

    def stop(self, id: str) -> None:
        now(self.head.stop(id))

    def final_report(self, id: str) -> StatusReport | None:
        return now(self.head.final_report(id))

    def report(self) -> StatusReport | None:
        return now(self.head.report())

    def acknowledge(self, submission_id: str, sequence: int) -> None:
        now(self.head.acknowledge(submission_id, sequence))
