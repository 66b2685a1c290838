"""A verifier that is a service: batches are posted to it as JSON, with time limits and retries.

All requests of a reward are made by one thread with an event loop, which lives until close().
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import aiohttp

from rlhf_api.spec.rewards import HTTPReward, OnRewardError, RewardSpec
from rlhf_runtime.rewards.checks import checked_scores
from rlhf_runtime.rewards.errors import RewardError
from rlhf_runtime.rewards.messages import BatchScores, Fault
from rlhf_runtime.rewards.request import Batch, Request
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores

FIRST_WAIT_SECONDS = 0.5
"""Before the first retry; it doubles with each further one."""
LONGEST_WAIT_SECONDS = 30.0
"""Also where the service asks for more in Retry-After."""
TOO_MANY_REQUESTS = 429
BY_ONE_SAMPLE = (400, 413, 422, 500)
"""With these a service answers to a sample that it cannot take, among others; they are sent again
one by one."""
LONGEST_ANSWER_BYTES = 64 * 2**20
"""Of one answer; more is not read."""

Sleep = Callable[[float], Awaitable[None]]


class TryAgain(Exception):
    """A request that failed in a way that may pass."""

    def __init__(
        self,
        fault: Fault,
        why: str,
        wait_seconds: float | None = None,
        by_one_sample: bool = False,
    ) -> None:
        super().__init__(why)
        self.fault = fault
        self.wait_seconds = wait_seconds
        self.by_one_sample = by_one_sample


class HTTPScorer:
    """The service of one reward, with the methods of VerifierPool that a Scorer needs."""

    def __init__(self, spec: RewardSpec, sleep: Sleep = asyncio.sleep) -> None:
        """Start the thread; the service is not asked before there is something to score.

        sleep: waits before a retry, in seconds.
        """
        assert spec.http is not None
        self._spec = spec
        self._http = spec.http
        self._sleep = sleep
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._turns = asyncio.Semaphore(spec.http.max_concurrency)
        name = f"http-{spec.name}"
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Return at once: a service may come up later than the job, and declares no metric."""

    def submit(self, samples: Sequence[Sample]) -> Future[Scores]:
        """Score samples without waiting; calls share the requests under way. Where onError is Fail,
        none begins after a sample has failed."""
        with self._lock:
            if self._closed:
                failed: Future[Scores] = Future()
                failed.set_exception(self._closing())
                return failed
            return asyncio.run_coroutine_threadsafe(self._score(samples), self._loop)

    def close(self) -> None:
        """End all requests; a call under way fails. Closing twice does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _score(self, samples: Sequence[Sample]) -> Scores:
        request = Request(samples, self._http.batch_size, longest_seconds(self._http))
        try:
            async with self._session() as session, asyncio.TaskGroup() as group:
                news = asyncio.Condition()
                for _ in range(min(self._http.max_concurrency, len(samples))):
                    group.create_task(self._send_batches(session, request, news))
        except asyncio.CancelledError:
            raise self._closing() from None
        return request.scores()

    def _session(self) -> aiohttp.ClientSession:
        limit = aiohttp.ClientTimeout(total=self._http.timeout_seconds)
        return aiohttp.ClientSession(timeout=limit)

    async def _send_batches(
        self, session: aiohttp.ClientSession, request: Request, news: asyncio.Condition
    ) -> None:
        """One batch at a time until all are over: one that fails may become several."""
        while not request.is_over:
            async with news:
                await news.wait_for(lambda: request.pending or request.is_over)
            async with self._turns:
                if request.pending:
                    batch = request.next_batch()
                    request.answer(batch, await self._ask(session, batch))
            if request.has_errors and self._stops_at_errors:
                request.pending.clear()
            async with news:
                news.notify_all()

    async def _ask(self, session: aiohttp.ClientSession, batch: Batch) -> BatchScores:
        """Send a batch until it is answered or maxRetries is reached. A sample that is sent alone,
        since it may be why its batch was refused, is not sent again where it is refused itself."""
        retries = self._http.max_retries
        for tries in range(retries + 1):
            try:
                return await self._post(session, batch.samples)
            except TryAgain as error:
                failure = error
            if failure.by_one_sample and batch.origin is not None:
                break
            if tries < retries:
                await self._sleep(wait_seconds(tries, failure.wait_seconds))
        times = f", {tries + 1} times" if tries else ""
        detail = f"{self._http.url}: {failure}{times}; see to the service or its url"
        return BatchScores(
            batch_fault=failure.fault, detail=detail, by_one_sample=failure.by_one_sample
        )

    async def _post(self, session: aiohttp.ClientSession, batch: Sequence[Sample]) -> BatchScores:
        samples = [asdict(sample) for sample in batch]
        body = {"samples": samples, "parameters": self._http.parameters}
        try:
            async with session.post(self._http.url, json=body, allow_redirects=False) as answer:
                content = await _body(answer)
        except TimeoutError as error:
            seconds = self._http.timeout_seconds
            why = f"longer than timeoutSeconds = {seconds} (raise it where that is not enough)"
            raise TryAgain(Fault.TIMED_OUT, why) from error
        except (aiohttp.ClientError, OSError) as error:
            raise TryAgain(Fault.UNREACHABLE, f"no answer ({error})") from error
        if answer.status == TOO_MANY_REQUESTS or answer.status >= 500:
            asked = retry_after(answer.headers.get("Retry-After", ""))
            raise TryAgain(
                Fault.REFUSED, _status(answer, content), asked, answer.status in BY_ONE_SAMPLE
            )
        if not 200 <= answer.status < 300:
            refusal = self._failed(Fault.REFUSED, _status(answer, content))
            return replace(refusal, by_one_sample=answer.status in BY_ONE_SAMPLE)
        if len(content) > LONGEST_ANSWER_BYTES:
            why = (
                f"got an answer of more than {LONGEST_ANSWER_BYTES} bytes, allowed at most as many"
            )
            return self._failed(Fault.UNREADABLE, why)
        return self._read(content, len(batch))

    def _read(self, content: bytes, num_samples: int) -> BatchScores:
        try:
            answer: Any = json.loads(content)
        except ValueError:
            answer = None
        values = answer.get("scores") if isinstance(answer, dict) else None
        if not isinstance(values, list):
            got = content[:200].decode(errors="replace")
            return self._failed(Fault.UNREADABLE, f'got {got!r}, allowed {{"scores": [...]}}')
        scores = checked_scores(values, num_samples)
        if scores.batch_fault is not None:
            return replace(scores, detail=f"{self._http.url}: {scores.detail}")
        told = {
            index: (fault, f"{self._http.url}: {detail}")
            for index, (fault, detail) in scores.faults.items()
        }
        return replace(scores, faults=told)

    def _failed(self, fault: Fault, why: str) -> BatchScores:
        detail = f"{self._http.url}: {why}; correct the service or the url"
        return BatchScores(batch_fault=fault, detail=detail)

    def _closing(self) -> RewardError:
        return RewardError(f"{self.title} was closed while it was in use")

    @property
    def _stops_at_errors(self) -> bool:
        return self._http.on_error is OnRewardError.FAIL

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"the reward {self._spec.name} ({self._http.url})"


def longest_seconds(http: HTTPReward) -> float:
    """How long a request to a service may take with all its retries and the waits before them."""
    return http.timeout_seconds * (http.max_retries + 1) + LONGEST_WAIT_SECONDS * http.max_retries


def wait_seconds(tries: int, asked: float | None) -> float:
    """How long to wait before a retry: what the service asks for, or exponentially longer.

    tries: retries before this one.
    asked: seconds of its Retry-After.
    """
    if asked is not None:
        return min(max(asked, 0.0), LONGEST_WAIT_SECONDS)
    longest = min(FIRST_WAIT_SECONDS * 2**tries, LONGEST_WAIT_SECONDS)
    return random.uniform(longest / 2, longest)  # jitter: not all at the same moment


def retry_after(value: str) -> float | None:
    """Seconds that a Retry-After header asks for, given as seconds or a date; None: neither."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return parsedate_to_datetime(value).timestamp() - time()
    except ValueError:
        return None


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """What a service answers; of one that is too long only the beginning."""
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > LONGEST_ANSWER_BYTES:
            break
    return bytes(content)


def _status(answer: aiohttp.ClientResponse, content: bytes) -> str:
    said = content[:200].decode(errors="replace")
    return f"status {answer.status} {answer.reason}: {said!r}"
