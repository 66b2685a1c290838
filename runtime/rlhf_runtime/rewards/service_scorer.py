"""Services that score: batches are posted as JSON, with time limits and retries.

One thread with an event loop makes all requests of a reward; it runs until close().
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from email.utils import parsedate_to_datetime
from time import time
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.services import HTTPReward, JudgeReward, OnRewardError
from rlhf_runtime.rewards.errors import RewardError
from rlhf_runtime.rewards.http_headers import request_headers
from rlhf_runtime.rewards.messages import BatchScores, RewardFault
from rlhf_runtime.rewards.request import Request, SampleBatch
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import OnScore, Scores
from rlhf_runtime.secret_headers import hide, secret_values

# Wait before the first retry; doubles with each further retry.
FIRST_WAIT_SECONDS = 0.5
# Maximum wait before a retry, even if Retry-After asks for more.
MAX_WAIT_SECONDS = 30.0
TOO_MANY_REQUESTS = 429
# Statuses that one bad sample of a batch may cause: its samples are sent again one by one.
SAMPLE_ERROR_STATUSES = (400, 413, 422, 500)
# Maximum length of a response; the rest is not read.
MAX_ANSWER_BYTES = 64 * 2**20
# Length of an answer's beginning in messages.
SHOWN_BYTES = 200

Sleep = Callable[[float], Awaitable[None]]


class RetryableError(Exception):
    """A request that failed in a way that may be temporary."""

    def __init__(
        self,
        fault: RewardFault,
        why: str,
        wait_seconds: float | None = None,
        retry_alone: bool = False,
    ) -> None:
        super().__init__(why)
        self.fault = fault
        self.wait_seconds = wait_seconds
        self.retry_alone = retry_alone


class ServiceScorer(ABC):
    """The service of one reward, with the same methods for a Scorer as VerifierPool."""

    def __init__(
        self, spec: RewardSpec, url: str, batch_size: int, sleep: Sleep = asyncio.sleep
    ) -> None:
        """Start the thread; sends no request yet.

        url: address of the requests.
        batch_size: samples per request.
        sleep: waits before a retry, in seconds.

        Raises:
            RewardError: a variable with a header's value is not set, or has no such value.
        """
        assert spec.service is not None
        self._headers = request_headers(spec) | {"Content-Type": "application/json"}
        if spec.service.compress:
            self._headers["Content-Encoding"] = "gzip"
        self._secrets = secret_values(spec.service.variables)
        self._spec = spec
        self._service = spec.service
        self.url = url
        self._batch_size = batch_size
        self._sleep = sleep
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(spec.service.max_concurrency)
        name = f"service-{spec.name}"
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def remedy(self) -> str:
        """Advice about a refused request, or an answer that cannot be used."""
        return "correct the service or the url"

    @abstractmethod
    def body(self, batch: Sequence[Sample]) -> Any:
        """Return the JSON value to send for a batch."""

    @abstractmethod
    def read(self, content: bytes, num_samples: int) -> BatchScores:
        """Read the scores of a batch from a successful answer; other content is a fault."""

    def wait_until_ready(self) -> str | None:
        """Return no metric, at once: a service may start later than the job, and declares none."""
        return None

    def submit(self, samples: Sequence[Sample], on_score: OnScore | None = None) -> Future[Scores]:
        """Score samples without waiting. All calls together keep to maxConcurrency. With onError:
        Fail no request starts after a sample has failed.

        on_score: called in the service's thread with each final score.
        """
        with self._lock:
            if self._closed:
                failed: Future[Scores] = Future()
                failed.set_exception(self._closed_error())
                return failed
            return asyncio.run_coroutine_threadsafe(self._score(samples, on_score), self._loop)

    def close(self) -> None:
        """Cancel all requests; pending calls fail. Closing twice does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        # Only now: the loop must run until the cancelled tasks have ended.
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _score(self, samples: Sequence[Sample], on_score: OnScore | None) -> Scores:
        limit_seconds = max_request_seconds(self._service)
        request = Request(samples, self._batch_size, limit_seconds, on_score=on_score)
        try:
            async with self._session() as session, asyncio.TaskGroup() as group:
                progress = asyncio.Condition()
                # One task per concurrent batch; the semaphore limits all calls together.
                for _ in range(min(self._service.max_concurrency, len(samples))):
                    group.create_task(self._send_batches(session, request, progress))
        except asyncio.CancelledError:
            raise self._closed_error() from None
        return request.scores()

    def _session(self) -> aiohttp.ClientSession:
        limit = aiohttp.ClientTimeout(total=self._service.timeout_seconds)
        # The semaphore limits the connections. A connector's own limit would let requests wait for
        # one while their time runs.
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(timeout=limit, headers=self._headers, connector=connector)

    async def _send_batches(
        self, session: aiohttp.ClientSession, request: Request, progress: asyncio.Condition
    ) -> None:
        """Send one batch at a time until all are done; a failed batch may become several."""
        while not request.is_done:
            async with progress:
                await progress.wait_for(lambda: request.pending or request.is_done)
            async with self._slots:
                if request.pending:
                    batch = request.next_batch()
                    request.record(batch, await self._score_batch(session, batch))
            # With onError: Fail the job ends anyway.
            if request.has_errors and self._stops_at_errors:
                request.pending.clear()
            async with progress:
                progress.notify_all()

    async def _score_batch(self, session: aiohttp.ClientSession, batch: SampleBatch) -> BatchScores:
        """Send a batch until it has scores or maxRetries is reached."""
        retries = self._service.max_retries
        for tries in range(retries + 1):
            try:
                return self._without_secrets(await self._post(session, batch.samples))
            except RetryableError as error:
                failure = error
            # A sample of a failed batch is sent alone once: it is probably the cause itself.
            if failure.retry_alone and batch.origin is not None:
                break
            if tries < retries:
                await self._sleep(wait_seconds(tries, failure.wait_seconds))
        times = f", {tries + 1} times" if tries else ""
        detail = f"{self.url}: {failure}{times}; check the service or its url"
        return self._without_secrets(
            BatchScores(batch_fault=failure.fault, detail=detail, retry_alone=failure.retry_alone)
        )

    def _without_secrets(self, scores: BatchScores) -> BatchScores:
        """Hide the values of headers in messages: a service may repeat what it was sent."""
        if not self._secrets or scores.batch_fault is None and not scores.faults:
            return scores
        faults = {
            index: (fault, hide(detail, self._secrets))
            for index, (fault, detail) in scores.faults.items()
        }
        return replace(scores, faults=faults, detail=hide(scores.detail, self._secrets))

    async def _post(self, session: aiohttp.ClientSession, batch: Sequence[Sample]) -> BatchScores:
        try:
            body = self.body(batch)
        except ValueError as error:
            return BatchScores(batch_fault=RewardFault.RAISED, detail=f"{self.url}: {error}")
        try:
            # A redirected POST would become a GET without the samples.
            async with session.post(
                self.url,
                data=self._encoded(body),
                allow_redirects=False,
                # Not by `trust_env`, which would also send credentials of ~/.netrc.
                proxy=_proxy(self.url) if self._service.use_proxy else None,
            ) as response:
                content = await _body(response)
        except TimeoutError as error:
            seconds = self._service.timeout_seconds
            why = f"longer than timeoutSeconds = {seconds} (raise it if that is not enough)"
            raise RetryableError(RewardFault.TIMED_OUT, why) from error
        except (aiohttp.ClientError, OSError) as error:
            raise RetryableError(RewardFault.UNREACHABLE, f"no answer ({error})") from error
        status, retry_alone = response.status, response.status in SAMPLE_ERROR_STATUSES
        if status == TOO_MANY_REQUESTS or status >= 500:
            requested = retry_after(response.headers.get("Retry-After", ""))
            why = _describe(response, content)
            raise RetryableError(RewardFault.REFUSED, why, requested, retry_alone)
        if not 200 <= status < 300:
            refusal = self._failed(RewardFault.REFUSED, _describe(response, content))
            return replace(refusal, retry_alone=retry_alone)
        if len(content) > MAX_ANSWER_BYTES:
            why = f"got an answer of more than {MAX_ANSWER_BYTES} bytes, allowed at most as many"
            return self._failed(RewardFault.UNREADABLE, why)
        return self.read(content, len(batch))

    def _encoded(self, body: Any) -> bytes:
        content = json.dumps(body).encode()
        # At once: a body that is compressed on its way has no Content-Length, which simple
        # services need.
        return gzip.compress(content, mtime=0) if self._service.compress else content

    def _failed(self, fault: RewardFault, why: str) -> BatchScores:
        detail = f"{self.url}: {why}; {self.remedy}"
        return BatchScores(batch_fault=fault, detail=detail)

    def unreadable(self, content: bytes, allowed: str) -> BatchScores:
        """Build the fault of a batch whose answer has no scores."""
        got = content[:SHOWN_BYTES].decode(errors="replace")
        return self._failed(RewardFault.UNREADABLE, f"got {got!r}, allowed {allowed}")

    def _closed_error(self) -> RewardError:
        return RewardError(f"{self.title} was closed while it was in use")

    @property
    def _stops_at_errors(self) -> bool:
        return self._service.on_error is OnRewardError.FAIL

    @property
    def title(self) -> str:
        """Name of the service in messages."""
        return f"the reward {self._spec.name} ({self.url})"


def max_request_seconds(service: HTTPReward | JudgeReward) -> float:
    """Return the maximum duration of a batch, with all retries and the waits before them."""
    retries = service.max_retries
    return service.timeout_seconds * (retries + 1) + MAX_WAIT_SECONDS * retries


def wait_seconds(tries: int, requested: float | None) -> float:
    """Return the wait before a retry: requested by the service, or with exponential backoff.

    tries: retries before this one.
    requested: seconds of the service's Retry-After.
    """
    if requested is not None:
        return min(max(requested, 0.0), MAX_WAIT_SECONDS)
    limit = min(FIRST_WAIT_SECONDS * 2**tries, MAX_WAIT_SECONDS)
    # Jitter, so that requests that failed together do not return together.
    return random.uniform(limit / 2, limit)


def retry_after(value: str) -> float | None:
    """Parse a Retry-After header, a number of seconds or a date; None if it is neither."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return parsedate_to_datetime(value).timestamp() - time()
    except ValueError:
        return None


def _proxy(url: str) -> str | None:
    """Return the environment's proxy for an address; None without one."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Read a response's body, at most one chunk beyond MAX_ANSWER_BYTES."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            break
    return bytes(content)


def _describe(response: aiohttp.ClientResponse, content: bytes) -> str:
    beginning = content[:SHOWN_BYTES].decode(errors="replace")
    return f"status {response.status} {response.reason}: {beginning!r}"
