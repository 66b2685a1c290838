from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import subprocess
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards import Sample, service_scorer
from rlhf_runtime.rewards.errors import RewardError
from rlhf_runtime.rewards.http_scorer import HTTPScorer
from rlhf_runtime.rewards.messages import BatchScores, RewardFault
from rlhf_runtime.rewards.request import Request, SampleBatch
from rlhf_runtime.rewards.scorer import Scorer
from rlhf_runtime.rewards.scores import Scores
from rlhf_runtime.rewards.service_scorer import (
    RetryableError,
    max_request_seconds,
    retry_after,
    wait_seconds,
)

MakeReward = Callable[..., RewardSpec]
MakeSamples = Callable[..., list[Sample]]
LENGTHS = object()
"""An answer: the length of each response."""
HANG = object()


class Service(ThreadingHTTPServer):
    """Answers with what is next in `answers`: (status, headers, body), LENGTHS or HANG."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Any] = []
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.asked = threading.Event()
        self.released = threading.Event()
        self.together: threading.Barrier | None = None
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/score"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        service = self.server
        body = json.loads(self.read_body())
        with service.lock:
            service.bodies.append(body)
            service.headers.append(dict(self.headers))
            answer = service.answers.pop(0) if service.answers else LENGTHS
        service.asked.set()
        if service.together is not None:
            service.together.wait(10)
        if answer is HANG:
            service.released.wait(10)
            return
        if answer is LENGTHS:
            lengths = [len(sample["response"]) for sample in body["samples"]]
            answer = (200, {}, json.dumps({"scores": lengths}))
        status, headers, text = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def read_body(self) -> bytes:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        is_compressed = self.headers.get("Content-Encoding") == "gzip"
        return gzip.decompress(content) if is_compressed else content

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def http(url: str, **settings: Any) -> RewardSpec:
    return RewardSpec.model_validate({"name": "remote", "http": {"url": url, **settings}})


def scored(spec: RewardSpec, samples: list[Sample]) -> tuple[Scores, list[float]]:
    """The scores, and the waits before retries."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    scorer = HTTPScorer(spec, sleep)
    try:
        return scorer.submit(samples).result(timeout=20), waits
    finally:
        scorer.close()


def told(scores: Scores) -> str:
    """The foremost failure."""
    return scores.failures[0].detail


def test_what_is_sent_and_that_scores_keep_their_order(
    service: Service, samples: MakeSamples
) -> None:
    responses = ["x" * size for size in range(20)]
    spec = http(service.url, batchSize=3, parameters={"strict": True})
    found, _ = scored(spec, samples(*responses))
    assert found.values.tolist() == list(range(20))
    assert found.valid.all() and not found.failures
    assert len(service.bodies) == 7
    first = {"prompt": "p", "response": "", "record": {"answer": "1"}, "finished": True}
    sent = [body for body in service.bodies if body["samples"][0] == first]
    assert sent[0]["parameters"] == {"strict": True}


def test_a_conversation_is_sent_with_its_turns(service: Service, samples: MakeSamples) -> None:
    (sample,) = samples("b")
    scored(http(service.url), [replace(sample, turns=("a", "b"), environment_reward={"won": 1.0})])
    ((sent,),) = [body["samples"] for body in service.bodies]
    assert sent["turns"] == ["a", "b"] and sent["environment_reward"] == {"won": 1.0}


def test_headers_have_their_values_from_the_environment(
    service: Service, samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = [
        {"name": "Authorization", "valueFromEnv": "JUDGE_TOKEN", "prefix": "Bearer "},
        {"name": "X-Team", "value": "a"},
    ]
    spec = http(service.url, headers=headers)
    # Keys of Secrets often end with the line end of the file that they were made from.
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret\n")
    scored(spec, samples("a"))
    (sent,) = service.headers
    assert (sent["Authorization"], sent["X-Team"]) == ("Bearer s3cret", "a")
    for value, kind in (("two\nlines", "other characters"), (" ", "nothing")):
        monkeypatch.setenv("JUDGE_TOKEN", value)
        with pytest.raises(RewardError, match=f"{kind} in JUDGE_TOKEN.*spec.env") as caught:
            HTTPScorer(spec)
        assert value not in str(caught.value) or not value.strip()


def test_requests_are_compressed_and_take_a_proxy_by_choice(
    service: Service, samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The service stands in for a proxy, which gets the complete address.
    monkeypatch.setenv("http_proxy", service.url)
    monkeypatch.delenv("no_proxy", raising=False)
    spec = http("http://nowhere.invalid/score", useProxy=True, compress=True, maxRetries=0)
    found, _ = scored(spec, samples("abc"))
    assert found.values.tolist() == [3.0]
    assert service.headers[0]["Content-Encoding"] == "gzip"
    assert service.headers[0]["Host"] == "nowhere.invalid"
    found, _ = scored(http("http://nowhere.invalid/score", maxRetries=0), samples("abc"))
    assert dict(found.errors) == {"unreachable": 1}, "no proxy unless asked for"


def test_no_more_requests_at_once_than_allowed(
    samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: list[int] = [0]

    async def post(*_: Any) -> BatchScores:
        busy.append(busy[-1] + 1)
        for _turn in range(10):  # every other request could begin now
            await asyncio.sleep(0)
        busy.append(busy[-1] - 1)
        return BatchScores(array("f", [1.0]))

    monkeypatch.setattr(HTTPScorer, "_post", post)
    scorer = HTTPScorer(http("http://a/", batchSize=1, maxConcurrency=2))
    asked = [scorer.submit(samples(*"abcdef")) for _call in range(3)]
    assert all(each.result(timeout=20).valid.all() for each in asked)
    scorer.close()
    assert max(busy) == 2


def test_calls_share_the_requests_under_way(service: Service, samples: MakeSamples) -> None:
    service.together = threading.Barrier(2)  # each waits for another one
    scorer = HTTPScorer(http(service.url, maxConcurrency=2))
    asked = [scorer.submit(samples("a")) for _call in range(2)]
    assert all(each.result(timeout=20).valid.all() for each in asked)
    scorer.close()


def test_requests_are_under_way_at_once(service: Service, samples: MakeSamples) -> None:
    service.together = threading.Barrier(2)  # each waits for another one
    found, _ = scored(http(service.url, batchSize=1, maxConcurrency=2), samples(*"abcdef"))
    assert found.valid.all()


@pytest.mark.parametrize(
    ("answer", "fault", "valid"),
    [
        ((200, {}, '{"scores": [1.0]}'), "wrongCount", [False, False]),
        ((200, {}, '{"scores": [NaN, 2]}'), "nonFinite", [False, True]),
        ((200, {}, '{"scores": ["1", 2]}'), "notANumber", [False, True]),
        ((200, {}, "<html>"), "unreadable", [False, False]),
        ((200, {}, "[1, 2]"), "unreadable", [False, False]),
        ((404, {}, "what?"), "refused", [False, False]),
        ((302, {"Location": "/x"}, ""), "refused", [False, False]),
    ],
)
def test_a_bad_answer_is_counted_and_not_asked_for_again(
    service: Service, samples: MakeSamples, answer: Any, fault: str, valid: list[bool]
) -> None:
    service.answers = [answer]
    found, waits = scored(http(service.url), samples("a", "b"))
    assert found.valid.tolist() == valid
    assert found.errors == {fault: valid.count(False)}
    assert service.url in told(found)
    assert (waits, len(service.bodies)) == ([], 1)


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_sample_that_a_service_cannot_take_costs_no_other(
    service: Service, samples: MakeSamples, status: int
) -> None:
    """Its batch is sent again one by one, each once."""
    refusal = (status, {}, "not this one")
    service.answers = [refusal, LENGTHS, refusal]
    found, waits = scored(
        http(service.url, batchSize=3, maxRetries=0, maxConcurrency=1), samples(*"abcde")
    )
    assert sorted(map(len, (body["samples"] for body in service.bodies))) == [1, 1, 1, 2, 3]
    assert (found.valid.sum(), found.errors, found.rescored, waits) == (4, {"refused": 1}, 3, [])
    assert "not this one" in told(found)


def test_a_sample_is_sent_again_where_the_service_is_busy(
    service: Service, samples: MakeSamples
) -> None:
    """After its batch was refused the service gets many requests at once, and may want a pause; it
    is not asked again whether it can take a sample."""
    busy, later = (503, {}, ""), (429, {"Retry-After": "7"}, "")
    refusals = [(413, {}, "too many"), busy, LENGTHS, later, LENGTHS, (500, {}, "not this one")]
    service.answers = list(refusals)
    found, waits = scored(http(service.url, maxConcurrency=1, maxRetries=1), samples(*"abc"))
    assert found.valid.tolist() == [True, False, True] and found.errors == {"refused": 1}
    assert "not this one" in told(found) and "times" not in told(found)
    assert len(waits) == 2 and waits[1] == 7.0
    assert [body["samples"][0]["response"] for body in service.bodies] == [*"aaaccb"]


class Posts:
    """In place of a service: what it does to requests, in their order, and the time of waits."""

    def __init__(self, patch: pytest.MonkeyPatch, *answers: BatchScores | RetryableError) -> None:
        self.answers = list(answers)
        self.num_posts = 0
        self.now = 0.0
        posts = self

        async def post(scorer: HTTPScorer, session: object, batch: list[Sample]) -> BatchScores:
            posts.num_posts += 1
            answer = posts.answers.pop(0) if len(posts.answers) > 1 else posts.answers[0]
            if isinstance(answer, RetryableError):
                raise answer
            return answer

        patch.setattr(HTTPScorer, "_post", post)
        patch.setattr(service_scorer, "Request", partial(Request, clock=lambda: self.now))

    def scores(self, spec: RewardSpec, samples: list[Sample]) -> Scores:
        async def sleep(seconds: float) -> None:
            self.now += seconds

        scorer = HTTPScorer(spec, sleep)
        try:
            return scorer.submit(samples).result(timeout=20)
        finally:
            scorer.close()


NOT_TAKEN = BatchScores(batch_fault=RewardFault.REFUSED, detail="400", retry_alone=True)
ONE = BatchScores(array("f", [1.0]))


@pytest.mark.parametrize("fault", [RewardFault.TIMED_OUT, RewardFault.UNREACHABLE])
def test_a_sample_that_is_late_is_sent_again(
    samples: MakeSamples, monkeypatch: pytest.MonkeyPatch, fault: RewardFault
) -> None:
    late = RetryableError(fault, "late")
    posts = Posts(monkeypatch, NOT_TAKEN, late, late, ONE, NOT_TAKEN, ONE)
    spec = http("http://there/", maxConcurrency=1, maxRetries=2)
    assert posts.scores(spec, samples(*"abc")).valid.tolist() == [True, True, False]


def test_waits_for_a_busy_service_do_not_give_up_a_batch(
    samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take longer than timeoutSeconds before any sample has a score, and the first has none in
    the end."""
    busy = RetryableError(RewardFault.REFUSED, "429", wait_seconds=30.0)
    posts = Posts(monkeypatch, NOT_TAKEN, busy, busy, NOT_TAKEN, ONE)
    spec = http("http://there/", maxConcurrency=1, timeoutSeconds=10)
    found = posts.scores(spec, samples(*"abcdef"))
    assert found.valid.tolist() == [False, *[True] * 5] and posts.now == 60.0


def test_samples_of_a_batch_are_given_up_where_the_service_stays_busy(
    samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request takes at most 4 x 10 s and three waits of 30 s, 130 s: two samples took 180 s."""
    busy = RetryableError(RewardFault.REFUSED, "429", wait_seconds=30.0)
    posts = Posts(monkeypatch, NOT_TAKEN, ONE, busy)
    spec = http("http://there/", maxConcurrency=1, timeoutSeconds=10, maxRetries=3)
    found = posts.scores(spec, samples(*"abcdefgh"))
    assert spec.http is not None and max_request_seconds(spec.http) == 130.0
    assert found.valid.tolist() == [True, *[False] * 7] and posts.now == 180.0
    assert posts.num_posts == 1 + 1 + 2 * 4


def test_samples_of_a_batch_are_under_way_at_once(
    samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the service takes, be it that there was one batch."""
    at_once = [0, 0]

    async def ask(scorer: HTTPScorer, session: object, batch: SampleBatch) -> BatchScores:
        if len(batch.samples) > 1:
            return BatchScores(batch_fault=RewardFault.REFUSED, detail="no", retry_alone=True)
        at_once[0] += 1
        at_once[1] = max(at_once)
        for _ in range(10):
            await asyncio.sleep(0)
        at_once[0] -= 1
        return BatchScores(array("f", [1.0]))

    monkeypatch.setattr(HTTPScorer, "_score_batch", ask)
    found, _ = scored(http("http://there/", batchSize=8, maxConcurrency=4), samples(*"abcdefgh"))
    assert found.valid.all() and at_once == [0, 4]


def test_an_answer_without_end_is_not_read_to_it(
    service: Service, samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_scorer, "MAX_ANSWER_BYTES", 1000)
    service.answers = [(200, {}, "1" * 100_000)]
    found, _ = scored(http(service.url), samples(1))
    assert found.errors == {"unreadable": 1} and "more than 1000 bytes" in told(found)


def test_what_may_pass_is_tried_again(service: Service, samples: MakeSamples) -> None:
    service.answers = [(503, {}, "later"), (429, {"Retry-After": "0"}, ""), (500, {}, "")]
    found, waits = scored(http(service.url), samples("abc"))
    assert found.values.tolist() == [3.0]
    assert waits[1] == 0.0
    assert 0.25 <= waits[0] <= 0.5 and 1.0 <= waits[2] <= 2.0


def test_retries_have_an_end(service: Service, samples: MakeSamples) -> None:
    service.answers = [(503, {}, "overloaded")] * 3
    found, waits = scored(http(service.url, maxRetries=2), samples("a", "b"))
    assert (len(waits), found.errors) == (2, {"refused": 2})
    assert "status 503 Service Unavailable: 'overloaded', 3 times" in told(found)


def test_a_late_answer_is_an_error(service: Service, samples: MakeSamples) -> None:
    service.answers = [HANG]
    found, _ = scored(http(service.url, timeoutSeconds=1, maxRetries=0), samples("a"))
    assert found.errors == {"timedOut": 1}


def test_a_service_that_is_down_is_named(samples: MakeSamples) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    found, waits = scored(http(url), samples("a"))
    assert (found.errors, len(waits)) == ({"unreachable": 1}, 3)
    assert url in told(found)
    match = f"remote .{url}. failed and onError is Fail: unreachable: sample 0: {url}"
    with (
        Scorer([http(url, onError="Fail", maxRetries=0)]) as scorer,
        pytest.raises(RewardError, match=match),
    ):
        scorer.score(samples("a"))


def test_closing_ends_requests_under_way(service: Service, samples: MakeSamples) -> None:
    service.answers = [HANG]
    scorer = HTTPScorer(http(service.url, timeoutSeconds=600))
    pending = scorer.submit(samples("a"))
    assert service.asked.wait(10)
    scorer.close()
    scorer.close()
    with pytest.raises(RewardError, match="closed"):
        pending.result(timeout=5)
    with pytest.raises(RewardError, match="closed"):
        scorer.submit(samples("a")).result(timeout=5)


def test_functions_and_services_are_summed(
    service: Service, reward: MakeReward, samples: MakeSamples
) -> None:
    remote = http(service.url).model_copy(update={"weight": 10.0})
    with Scorer([reward("length", name="local", weight=0.5), remote]) as scorer:
        result = scorer.score(samples("a", "bbb"))
    assert result.values.tolist() == [10.5, 31.5]
    assert result.means["reward/local"] == result.means["reward/remote"] == (4.0, 2.0)


def test_waits_have_a_bound() -> None:
    assert wait_seconds(0, 3600.0) == wait_seconds(0, 30.0) == 30.0
    assert 15.0 <= wait_seconds(20, None) <= 30.0
    assert retry_after("7") == 7.0
    assert retry_after("") is None
    assert (retry_after("Wed, 21 Oct 2015 07:28:00 GMT") or 0.0) < 0


def test_a_certificate_that_nobody_has_signed_is_refused(
    service: Service, samples: MakeSamples, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    words += ["-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    service.socket = context.wrap_socket(service.socket, server_side=True)
    url = service.url.replace("http:", "https:")
    scores, waits = scored(http(url, maxRetries=1), samples("a"))
    assert scores.errors == {"unreachable": 1} and len(waits) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in told(scores) and not service.bodies
