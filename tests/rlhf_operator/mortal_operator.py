"""`python -m rlhf_operator`, killed before and after every different thing that it does.

Everything that an operator changes, in Kubernetes and at heads, costs two operators their lives:
one is killed before it is done, a later one right after. Then it is let be, so that lives of jobs
come to their end. The journal tells who died of what; the next operator goes by it.

An operator that dies when it has written a status tells no event about it, so no event would ever
be told. With the option below they survive statuses, and die when they have told an event.

    python mortal_operator.py JOURNAL [--tell] [words of the operator]
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar
from unittest.mock import patch

from rlhf_api.report import StatusReport
from rlhf_kube.client import KubeClient
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest
from rlhf_operator import __main__ as program
from rlhf_operator.clients.head.addresses import HeadPod
from rlhf_operator.clients.head.protocol import Head, Submission
from rlhf_operator.process.head_connection import head_connector

Done = TypeVar("Done")
Dial = Callable[[HeadPod, str], Head]
BEFORE, AFTER = "before", "after"
TELL = "--tell"
SPARED = ((AFTER, "status"), (BEFORE, "create Event"))
"""With that option."""


@dataclass(frozen=True)
class Death:
    """When and of what an operator died."""

    when: str
    what: str
    """The verb, and what it was about."""


@dataclass(frozen=True)
class Journal:
    """All deaths, a line for each."""

    file: Path

    def read(self) -> list[Death]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [Death(*line.split(" ", 1)) for line in lines]

    def add(self, death: Death) -> None:
        with self.file.open("a") as file:
            file.write(f"{death.when} {death.what}\n")


class Mortality:
    """Ends this process around what it does."""

    def __init__(self, journal: Journal, spared: Sequence[tuple[str, str]] = ()) -> None:
        """`spared` are beginnings of things that nobody dies of, and when."""
        self._journal = journal
        self._spared = spared
        self._past = set(journal.read())
        self._lock = threading.Lock()

    def around(self, what: str, do: Callable[[], Done]) -> Done:
        """Do something, unless an operator has to die of it yet."""
        self._strike(Death(BEFORE, what))
        done = do()
        self._strike(Death(AFTER, what))
        return done

    async def around_head(self, what: str, do: Coroutine[Any, Any, None]) -> None:
        """The same for what is awaited."""
        try:
            self._strike(Death(BEFORE, what))
            await do
        finally:
            do.close()
        self._strike(Death(AFTER, what))

    def _strike(self, death: Death) -> None:
        if any(death.when == when and death.what.startswith(verb) for when, verb in self._spared):
            return
        with self._lock:  # who dies second did not die
            if death not in self._past:
                self._journal.add(death)
                os.kill(os.getpid(), signal.SIGKILL)


def mortal_kube(mortality: Mortality) -> type[KubeClient]:
    """The operator's own client, with which every write is dangerous."""

    class MortalKube(KubeClient):
        def create(self, manifest: Manifest) -> bool:
            return mortality.around(
                f"create {_name(manifest)}", lambda: KubeClient.create(self, manifest)
            )

        def apply(
            self, manifest: Manifest, *, force: bool = False, dry_run: bool = False
        ) -> Manifest:
            return mortality.around(
                f"apply {_name(manifest)}",
                lambda: KubeClient.apply(self, manifest, force=force, dry_run=dry_run),
            )

        def apply_status(self, manifest: Manifest) -> Manifest:
            status = manifest["status"]
            words = f"{status['phase']} {status.get('reason', '')} {_digest(status)}"
            return mortality.around(
                f"status {_name(manifest)}: {words}",
                lambda: KubeClient.apply_status(self, manifest),
            )

        def delete(
            self,
            kind: Kind,
            namespace: str,
            name: str,
            uid: str | None = None,
            grace_seconds: int | None = None,
        ) -> bool:
            return mortality.around(
                f"delete {kind.kind} {name}",
                lambda: KubeClient.delete(self, kind, namespace, name, uid, grace_seconds),
            )

    return MortalKube


@dataclass(frozen=True)
class MortalHead:
    """A head to which every request that changes something is dangerous."""

    head: Head
    mortality: Mortality

    async def submissions(self) -> tuple[Submission, ...]:
        return await self.head.submissions()

    async def submit(self, id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        submitted = self.head.submit(id, command, environment)
        await self.mortality.around_head(f"submit {id}", submitted)

    async def stop(self, id: str) -> None:
        await self.mortality.around_head(f"stop {id}", self.head.stop(id))

    async def final_report(self, id: str) -> StatusReport | None:
        return await self.head.final_report(id)

    async def report(self) -> StatusReport | None:
        return await self.head.report()

    async def acknowledge(self, submission_id: str, sequence: int) -> None:
        acknowledged = self.head.acknowledge(submission_id, sequence)
        await self.mortality.around_head(f"acknowledge {submission_id}", acknowledged)


def _name(manifest: Manifest) -> str:
    """Kind and name; events have names of their own each, and are known by what they tell."""
    if manifest["kind"] == "Event":
        return f"Event {manifest['involvedObject']['name']} {manifest['reason']}"
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def _digest(status: Any) -> str:
    """What a status says but for times, in which any two differ."""
    text = json.dumps(_timeless(status), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        seconds = ("gpuSeconds", "idleGpuSeconds", "phaseSeconds")
        said = {name: each for name, each in value.items() if name not in seconds}
        return {name: _timeless(each) for name, each in said.items() if not name.endswith("Time")}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


@dataclass
class Lives:
    """One operator after the other, until somebody tells them to end."""

    journal: Journal
    words: list[str]
    spared: Sequence[tuple[str, str]] = ()
    _is_told: bool = False
    _living: int = 0

    def run(self) -> int:
        """The exit code of the last one."""
        signal.signal(signal.SIGTERM, self._tell)
        code = -signal.SIGKILL
        while code == -signal.SIGKILL and not self._is_told:
            self._begin()
            _, status = os.waitpid(self._living, 0)
            code = os.waitstatus_to_exitcode(status)
        return max(code, 0)

    def _begin(self) -> None:
        """A life begins as a copy of this process, which has loaded all that an operator needs."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._living = os.fork()
        if not self._living:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os._exit(live(Mortality(self.journal, self.spared), self.words))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self._is_told = True
        if self._living:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self._living, number)


def live(mortality: Mortality, words: list[str]) -> int:
    """One operator's life; its exit code."""

    def mortal_dialing(*settings: Any) -> Dial:
        dial = head_connector(*settings)
        return lambda place, token: MortalHead(dial(place, token), mortality)

    with patch.multiple(program, KubeClient=mortal_kube(mortality), head_connector=mortal_dialing):
        return program.main(words)


if __name__ == "__main__":
    file, *words = sys.argv[1:]
    spared = SPARED if TELL in words else ()
    sys.exit(Lives(Journal(Path(file)), [each for each in words if each != TELL], spared).run())
