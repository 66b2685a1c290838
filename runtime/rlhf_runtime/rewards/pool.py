"""A verifier in processes of its own: batches, time limits, and what happens when it fails.

All processes of a pool are started and served by one thread that lives as long as the pool: the
kernel ends them when the thread that started them ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe, connection
from types import TracebackType
from typing import Self

from rlhf_api.spec.rewards import OnRewardError, RewardSpec
from rlhf_runtime.rewards.errors import InvalidReward, RewardError
from rlhf_runtime.rewards.messages import BatchScores, Fault, Ready, Unusable
from rlhf_runtime.rewards.request import Request
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores
from rlhf_runtime.rewards.verifier_process import ProcessEnded, VerifierProcess

START_SECONDS = 120.0
"""Longest time to import a verifier's module; generous, because it may import torch."""


class VerifierPool:
    """The processes of one reward.

    A process that exceeds the time limit or dies is replaced; its batch counts as errors and is not
    tried again. Use it as a context manager, or close it.
    """

    def __init__(self, spec: RewardSpec, start_seconds: float = START_SECONDS) -> None:
        """Begin to start the processes; wait_until_ready() waits for them.

        start_seconds: longest time that loading the function may take.
        """
        assert spec.function is not None
        self._spec = spec
        self._function = spec.function
        self._start_seconds = start_seconds
        self._processes: list[VerifierProcess] = []
        self._metric: str | None = None
        self._closed, self._close_signal = Pipe(duplex=False)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"verifier-{spec.name}")
        self._started = self._thread.submit(self._start)

    def wait_until_ready(self) -> str | None:
        """Wait until every process has loaded the function; returns the metric that it measures.

        Raises:
            InvalidReward: it cannot be loaded.
        """
        return self._started.result()

    def score(self, samples: Sequence[Sample]) -> Scores:
        """Score samples and wait for the result.

        Raises:
            RewardError: a sample has no score and onError is fail.
            InvalidReward: the function cannot be loaded.
        """
        return self.submit(samples).result()

    def submit(self, samples: Sequence[Sample]) -> Future[Scores]:
        """Score samples without waiting; requests are served one after the other."""
        return self._thread.submit(self._score, samples)

    def close(self) -> None:
        """End all processes; a request under way fails. Closing twice does nothing."""
        self._close_signal.close()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._kill_all()
        self._closed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> str | None:
        nothing = Request((), self._function.batch_size)
        try:
            for _ in range(self._function.processes):
                self._processes.append(self._new_process())
            while not all(process.is_ready for process in self._processes):
                self._await_answers(nothing)
        except RewardError:
            self._kill_all()
            raise
        return self._metric

    def _score(self, samples: Sequence[Sample]) -> Scores:
        self._started.result()
        request = Request(samples, self._function.batch_size)
        try:
            self._run(request)
        except RewardError:
            self._kill_all()
            raise
        scores = request.scores()
        if scores.first_error is not None and self._stops_at_errors:
            raise RewardError(
                f"{self._title} failed and onError is fail: {scores.first_error}\ncorrect the "
                "function, or set onError to exclude or zero"
            )
        return scores

    def _run(self, request: Request) -> None:
        """Serve a request until nothing is pending and no process is busy."""
        while True:
            if request.has_errors and self._stops_at_errors:
                request.pending.clear()
            self._hand_out(request)
            if not request.pending and all(process.batch is None for process in self._processes):
                return
            self._await_answers(request)

    def _hand_out(self, request: Request) -> None:
        """Give the next batches to idle processes."""
        for index, process in enumerate(self._processes):
            if not request.pending or not process.is_ready or process.batch is not None:
                continue
            start = request.pending[0]
            deadline = time.monotonic() + self._function.timeout_seconds
            try:
                process.hand_over(request.batch(start), start, deadline)
            except ProcessEnded:
                self._processes[index] = self._new_process()  # it died idle: no fault of the batch
            else:
                request.pending.popleft()

    def _await_answers(self, request: Request) -> None:
        """Wait until a process says something or is late, and deal with it."""
        awaited = [one for one in self._processes if one.batch is not None or not one.is_ready]
        seconds = min(one.deadline for one in awaited) - time.monotonic()
        connections = [self._closed, *(one.connection for one in awaited)]
        readable = connection.wait(connections, max(seconds, 0.0))
        if self._closed in readable:
            raise RewardError(f"{self._title} was closed while it was in use")
        for process in awaited:
            if process.connection in readable:
                self._take_answer(process, request)
            elif time.monotonic() >= process.deadline:
                self._replace(process, request, Fault.TIMED_OUT, self._lateness(process))

    def _take_answer(self, process: VerifierProcess, request: Request) -> None:
        try:
            message = process.receive()
        except ProcessEnded as ending:
            self._replace(process, request, Fault.DIED, str(ending))
            return
        if isinstance(message, Unusable):
            raise InvalidReward(f"{self._title} cannot be used: {message.why}")
        if isinstance(message, Ready):
            process.is_ready, self._metric = True, message.metric
            return
        assert isinstance(message, BatchScores) and process.batch is not None
        request.answer(process.batch, message)
        process.batch = None

    def _replace(
        self, process: VerifierProcess, request: Request, fault: Fault, detail: str
    ) -> None:
        """Kill a process, count its batch as errors, start another one."""
        process.kill()
        if process.batch is None:
            raise InvalidReward(f"{self._title} cannot be used: its module did not load: {detail}")
        request.fail(process.batch, fault, detail)
        self._processes[self._processes.index(process)] = self._new_process()

    def _new_process(self) -> VerifierProcess:
        deadline = time.monotonic() + self._start_seconds
        try:
            return VerifierProcess(self._spec.name, self._function, deadline)
        except ProcessEnded as ending:
            raise InvalidReward(f"{self._title} cannot be used: {ending}") from ending

    def _kill_all(self) -> None:
        for process in self._processes:
            process.kill()

    def _lateness(self, process: VerifierProcess) -> str:
        if process.batch is None:
            return f"loading it took longer than {self._start_seconds:g} s"
        return f"a batch took longer than timeoutSeconds = {self._function.timeout_seconds}"

    @property
    def _stops_at_errors(self) -> bool:
        return self._function.on_error is OnRewardError.FAIL

    @property
    def _title(self) -> str:
        return f"the reward {self._spec.name} ({self._function.entrypoint})"
