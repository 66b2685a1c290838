"""A verifier in processes of its own: batches, time limits, and what happens when it fails.

All processes of a pool are started and served by one thread that lives as long as the pool: the
kernel ends them when the thread that started them ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing import Pipe, connection
from types import TracebackType
from typing import Self

from rlhf_api.spec.rewards import OnRewardError, RewardSpec
from rlhf_runtime.rewards.errors import (
    DiesLoading,
    InvalidReward,
    LoadsSlowly,
    RaisesLoading,
    RewardError,
)
from rlhf_runtime.rewards.messages import BatchScores, Fault, Ready, Unusable
from rlhf_runtime.rewards.request import Request
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores
from rlhf_runtime.rewards.verifier_process import ProcessEnded, VerifierProcess

START_SECONDS = 120.0
"""Longest time to import a verifier's module; generous, because it may import torch."""


class VerifierPool:
    """The processes of one reward, which score the batches of any number of requests.

    Where the function raises on a batch, its samples are scored again one by one. A process that
    exceeds the time limit or dies is replaced; its batch counts as errors and is not tried again.
    Use it as a context manager, or close it.
    """

    def __init__(
        self,
        spec: RewardSpec,
        start_seconds: float = START_SECONDS,
        memory_bytes: int | None = None,
    ) -> None:
        """Begin to start the processes; wait_until_ready() waits for them.

        start_seconds: longest time that loading the function may take.
        memory_bytes: of each process; see VerifierProcess.
        """
        assert spec.function is not None
        self._spec = spec
        self._function = spec.function
        self._start_seconds = start_seconds
        self._memory_bytes = memory_bytes
        self._processes: list[VerifierProcess] = []
        self._metric: str | None = None
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        """Over the requests, the failure and the sending end of the pipe."""
        self._failure: Exception | None = None
        self._news, self._teller = Pipe(duplex=False)
        """Wakes the thread: there is a request, or, where the pipe ends, the pool is closed."""
        self._started: Future[str | None] = Future()
        name = f"verifier-{spec.name}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> str | None:
        """Wait until every process has loaded the function; returns the metric that it measures.

        Raises:
            InvalidReward: it cannot be loaded.
        """
        return self._started.result()

    def score(self, samples: Sequence[Sample]) -> Scores:
        """Score samples and wait for the result.

        Raises:
            InvalidReward: the function cannot be loaded.
        """
        return self.submit(samples).result()

    def submit(self, samples: Sequence[Sample]) -> Future[Scores]:
        """Score samples without waiting. A process that is free takes the next batch of the first
        request that has one. Where onError is Fail, none begins after a sample has failed.
        """
        request = Request(samples, self._function.batch_size, self._function.timeout_seconds)
        with self._lock:
            if self._failure is not None:
                request.result.set_exception(self._failure)
            else:
                self._requests.append(request)
                self._teller.send_bytes(b"request")
        return request.result

    def close(self) -> None:
        """End all processes; requests under way fail. Closing twice does nothing."""
        with self._lock:
            self._failure = self._failure or self._closing()
            self._teller.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self) -> None:
        """The thread: start the processes and serve requests until the pool is closed."""
        try:
            for _ in range(self._function.processes):
                self._processes.append(self._new_process())
            while not all(process.is_ready for process in self._processes):
                self._await_answers()
            self._started.set_result(self._metric)
            while True:
                self._hand_out()
                self._end_requests()
                self._await_answers()
        except Exception as error:  # whoever waits has to hear of it, whatever it is
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """End all processes; what is asked, now and later, fails."""
        for process in self._processes:
            process.kill()
        with self._lock:
            self._failure = error
            asked, self._requests = self._requests, []
        self._news.close()
        if not self._started.done():
            self._started.set_exception(error)
        for request in asked:
            request.result.set_exception(error)

    def _hand_out(self) -> None:
        """Give the next batches to idle processes."""
        with self._lock:
            asked = list(self._requests)
        for request in asked:
            if request.has_errors and self._stops_at_errors:
                request.pending.clear()
        for index, process in enumerate(self._processes):
            pending = next((request for request in asked if request.pending), None)
            if pending is None:
                return
            if not process.is_ready or process.batch is not None:
                continue
            batch = pending.next_batch()
            deadline = time.monotonic() + self._function.timeout_seconds
            try:
                process.hand_over(batch, deadline)
            except ProcessEnded:  # it died idle: no fault of the batch
                pending.put_back(batch)
                self._processes[index] = self._new_process()

    def _end_requests(self) -> None:
        """Give those that are over their result."""
        with self._lock:
            over = {request: request.scores() for request in self._requests if request.is_over}
            self._requests = [request for request in self._requests if request not in over]
        for request, scores in over.items():
            request.result.set_result(scores)

    def _await_answers(self) -> None:
        """Wait until a process says something or is late, or there is news; and deal with it."""
        awaited = [one for one in self._processes if one.batch is not None or not one.is_ready]
        deadline = min((one.deadline for one in awaited), default=None)
        seconds = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        readable = connection.wait([self._news, *(one.connection for one in awaited)], seconds)
        if self._news in readable:
            self._hear_news()
        for process in awaited:
            if process.connection in readable:
                self._take_answer(process)
            elif time.monotonic() >= process.deadline:
                self._replace(process, Fault.TIMED_OUT, self._lateness(process))

    def _hear_news(self) -> None:
        try:
            self._news.recv_bytes()
        except EOFError:
            raise self._closing() from None

    def _take_answer(self, process: VerifierProcess) -> None:
        try:
            message = process.receive()
        except ProcessEnded as ending:
            self._replace(process, Fault.DIED, str(ending))
            return
        if isinstance(message, Unusable):
            kind = RaisesLoading if message.has_raised else InvalidReward
            raise kind(f"{self.title} cannot be used: {message.why}")
        if isinstance(message, Ready):
            process.is_ready, self._metric = True, message.metric
            return
        assert isinstance(message, BatchScores) and process.batch is not None
        process.batch.request.answer(process.batch, message)
        process.batch = None

    def _replace(self, process: VerifierProcess, fault: Fault, detail: str) -> None:
        """Kill a process, count its batch as errors, start another one."""
        process.kill()
        if process.batch is None:
            kind = LoadsSlowly if fault is Fault.TIMED_OUT else DiesLoading
            raise kind(f"{self.title} cannot be used: its module did not load: {detail}")
        process.batch.request.fail(process.batch, fault, detail)
        self._processes[self._processes.index(process)] = self._new_process()

    def _new_process(self) -> VerifierProcess:
        deadline = time.monotonic() + self._start_seconds
        try:
            return VerifierProcess(self._spec.name, self._function, deadline, self._memory_bytes)
        except ProcessEnded as ending:
            raise InvalidReward(f"{self.title} cannot be used: {ending}") from ending

    def _lateness(self, process: VerifierProcess) -> str:
        if process.batch is None:
            return f"loading it took longer than {self._start_seconds:g} s"
        return f"a batch took longer than timeoutSeconds = {self._function.timeout_seconds}"

    def _closing(self) -> RewardError:
        return RewardError(f"{self.title} was closed while it was in use")

    @property
    def _stops_at_errors(self) -> bool:
        return self._function.on_error is OnRewardError.FAIL

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"the reward {self._spec.name} ({self._function.entrypoint})"
