"""Runs a verifier in its own processes: batches, time limits, and replacement of failed processes.

One thread starts and serves all processes of a pool, and runs as long as the pool does.
"""

# The kernel kills a verifier's process when the thread that started it ends, so that thread must
# outlive every process.

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing import Pipe, connection
from types import TracebackType
from typing import Self

from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.services import OnRewardError
from rlhf_runtime.rewards.errors import (
    InvalidReward,
    LoadCrashed,
    LoadRaised,
    LoadTimedOut,
    RewardError,
)
from rlhf_runtime.rewards.messages import BatchScores, Ready, RewardFault, Unusable
from rlhf_runtime.rewards.request import Request
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import OnScore, Scores
from rlhf_runtime.rewards.verifier_handle import ProcessExited, VerifierProcess

# Time limit for importing a verifier's module; generous, because it may import torch.
START_SECONDS = 120.0


class VerifierPool:
    """The processes of one reward, which score the batches of any number of requests.

    A process that exceeds the time limit or dies is replaced. If the function raises on a batch, or
    loses its process, the batch's samples are scored again one by one. Use it as a context manager,
    or close it.
    """

    def __init__(
        self,
        spec: RewardSpec,
        start_seconds: float = START_SECONDS,
        memory_bytes: int | None = None,
    ) -> None:
        """Start the processes in the background; wait_until_ready() waits for them.

        start_seconds: time limit for loading the function.
        memory_bytes: limit of each process; see VerifierProcess.
        """
        assert spec.function is not None
        self._spec = spec
        self._function = spec.function
        self._start_seconds = start_seconds
        self._memory_bytes = memory_bytes
        self._processes: list[VerifierProcess] = []
        self._metric: str | None = None
        self._requests: list[Request] = []
        # Protects the requests, the failure and the pipe's sending end.
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self._wakeups, self._wakeup_sender = Pipe(duplex=False)
        """Wakes the thread: a message announces a request, the pipe's end that the pool closes."""
        self._started: Future[str | None] = Future()
        name = f"verifier-{spec.name}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> str | None:
        """Wait until every process has loaded the function; returns the metric that it declares.

        Raises:
            InvalidReward: the function cannot be loaded.
        """
        return self._started.result()

    def score(self, samples: Sequence[Sample]) -> Scores:
        """Score samples and wait for the result.

        Raises:
            InvalidReward: the function cannot be loaded.
        """
        return self.submit(samples).result()

    def submit(self, samples: Sequence[Sample], on_score: OnScore | None = None) -> Future[Scores]:
        """Score samples without waiting.

        An idle process takes the next batch of the first request that has one. With onError: Fail
        no batch of the request starts after a sample has failed.

        on_score: called in the pool's thread with each final score.
        """
        request = Request(
            samples,
            self._function.batch_size,
            self._function.timeout_seconds,
            on_score=on_score,
        )
        with self._lock:
            if self._failure is not None:
                request.result.set_exception(self._failure)
            else:
                self._requests.append(request)
                self._wakeup_sender.send_bytes(b"request")
        return request.result

    def close(self) -> None:
        """Kill all processes; pending requests fail. Closing twice does nothing."""
        with self._lock:
            # An earlier error is the cause; closing must not hide it.
            self._failure = self._failure or self._closed_error()
            self._wakeup_sender.close()
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
        """Start the processes and serve requests until the pool is closed; runs in the thread."""
        try:
            for _ in range(self._function.processes):
                self._processes.append(self._new_process())
            while not all(process.is_ready for process in self._processes):
                self._wait_for_messages()
            self._started.set_result(self._metric)
            while True:
                self._assign_batches()
                self._complete_requests()
                self._wait_for_messages()
        except Exception as error:  # any error must reach the callers that wait for a result
            self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        """Kill all processes and fail all requests, current and future ones."""
        for process in self._processes:
            process.kill()
        with self._lock:
            self._failure = error
            requests, self._requests = self._requests, []
        self._wakeups.close()
        if not self._started.done():
            self._started.set_exception(error)
        for request in requests:
            request.result.set_exception(error)

    def _assign_batches(self) -> None:
        """Send the next batches to idle processes."""
        with self._lock:
            requests = list(self._requests)
        for request in requests:
            if request.has_errors and self._stops_at_errors:
                request.pending.clear()
        for index, process in enumerate(self._processes):
            pending = next((request for request in requests if request.pending), None)
            if pending is None:
                return
            if not process.is_ready or process.batch is not None:
                continue
            batch = pending.next_batch()
            deadline = time.monotonic() + self._function.timeout_seconds
            try:
                # The deadline starts here: waiting in the queue does not count.
                process.send_batch(batch, deadline)
            except ProcessExited:  # it died while idle, so the batch is not the cause
                pending.put_back(batch)
                self._processes[index] = self._new_process()

    def _complete_requests(self) -> None:
        """Set the results of requests that are done."""
        with self._lock:
            done = {request: request.scores() for request in self._requests if request.is_done}
            self._requests = [request for request in self._requests if request not in done]
        for request, scores in done.items():
            request.result.set_result(scores)

    def _wait_for_messages(self) -> None:
        """Wait for a process's message, a deadline or a wakeup, and handle it."""
        busy = [one for one in self._processes if one.batch is not None or not one.is_ready]
        deadline = min((process.deadline for process in busy), default=None)
        seconds = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        connections = [self._wakeups, *(process.connection for process in busy)]
        readable = connection.wait(connections, seconds)
        if self._wakeups in readable:
            self._receive_wakeup()
        for process in busy:
            if process.connection in readable:
                self._receive(process)
            elif time.monotonic() >= process.deadline:
                self._replace(process, RewardFault.TIMED_OUT, self._timeout_message(process))

    def _receive_wakeup(self) -> None:
        try:
            self._wakeups.recv_bytes()
        except EOFError:
            raise self._closed_error() from None

    def _receive(self, process: VerifierProcess) -> None:
        try:
            message = process.receive()
        except ProcessExited as exited:
            self._replace(process, RewardFault.DIED, str(exited))
            return
        if isinstance(message, Unusable):
            kind = LoadRaised if message.has_raised else InvalidReward
            raise kind(f"{self.title} cannot be used: {message.why}")
        if isinstance(message, Ready):
            process.is_ready, self._metric = True, message.metric
            return
        assert isinstance(message, BatchScores) and process.batch is not None
        process.batch.request.record(process.batch, message)
        process.batch = None

    def _replace(self, process: VerifierProcess, fault: RewardFault, detail: str) -> None:
        """Kill a process, return its batch as lost and start another process."""
        process.kill()
        if process.batch is None:
            # It has never been ready, so every new process would fail, too.
            kind = LoadTimedOut if fault is RewardFault.TIMED_OUT else LoadCrashed
            raise kind(f"{self.title} cannot be used: its module did not load: {detail}")
        process.batch.request.lose(process.batch, fault, detail)
        # In its place: `_assign_batches` goes through the processes by index.
        self._processes[self._processes.index(process)] = self._new_process()

    def _new_process(self) -> VerifierProcess:
        deadline = time.monotonic() + self._start_seconds
        try:
            return VerifierProcess(self._spec.name, self._function, deadline, self._memory_bytes)
        except ProcessExited as exited:
            raise InvalidReward(f"{self.title} cannot be used: {exited}") from exited

    def _timeout_message(self, process: VerifierProcess) -> str:
        if process.batch is None:
            return f"loading it took longer than {self._start_seconds:g} s"
        return f"a batch took longer than timeoutSeconds = {self._function.timeout_seconds}"

    def _closed_error(self) -> RewardError:
        return RewardError(f"{self.title} was closed while it was in use")

    @property
    def _stops_at_errors(self) -> bool:
        return self._function.on_error is OnRewardError.FAIL

    @property
    def title(self) -> str:
        """Name of the verifier in messages."""
        return f"the reward {self._spec.name} ({self._function.entrypoint})"
