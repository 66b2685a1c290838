"""A judge's grades become rewards, and whatever else it says costs one sample only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.errors import RewardError
from rlhf_runtime.rewards.grades import find_grade
from rlhf_runtime.rewards.judge_scorer import JudgeScorer

QUESTION = "Question: {record.question}\nAnswer: {response}\nGrade it from 0 to 10."


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("Score: 7", 7.0),
        ("**Score:** 7.5", 7.5),
        ("Rating: [[7]]", 7.0),
        ('{"score": 7, "reason": "3 of 4"}', 7.0),
        ('```json\n{"reason": "good", "Grade": "8"}\n```', 8.0),
        ("A first score: 3. With the bonus, the score is 9.", 9.0),
        ("<think>Score: 2? No.</think>\nScore: 6", 6.0),
        ("<think>Score: 2, I guess", None),
        ("7", 7.0),
        (" **7.** ", 7.0),
        ("Score: 7/10", 7.0),
        ("7 / 10", 7.0),
        ("Score: 7 out of 10", 7.0),
        ("Score: 70/100", None),
        ("Score: 3/5", None),
        ("4/5", None),
        ("Score: -1", -1.0),
        ("Score: 1.2.3", None),
        ("I would give it a 7 or so.", None),
        ("The response has 3 sentences.", None),
        ("<html>502</html>", None),
        ("underscore: 7", None),
        ("final_score: 7", 7.0),
        ("Score: .5", 0.5),
        ("", None),
        ("Score (0-10): 7", 7.0),
        ("Score (1-10): 7", 7.0),
        ("Score: 7\nMaximum score: 10", 7.0),
        ("Score: 7 (highest score: 10)", 7.0),
        ("Score: 7. The text fits grade 10 math.", 7.0),
        ("Score: seven. A score 10 needs more", None),
        ("Score:\n1. Correctness: 3\n", None),
        ("Score: 7-8", None),
        ("Score: 8,5", None),
        ("Score: 5%", None),
        ("Score: 1e1", None),
        ("Score: 3 of 5", None),
        ("4 (out of 5)", None),
        ("4 stars out of 5", None),
        ("first score: 2?\n</think>\n\n9", 9.0),
        ("The response opens with <think> and never closes it. Score: 4", 4.0),
        ("Score: **7**/10", 7.0),
        ("Final Score: 10", 10.0),
        ("Score = 7.", 7.0),
        ("score: 7\n", 7.0),
        ("Score:\n7", 7.0),
        ("Score:\n7.\n", 7.0),
        ("7.5", 7.5),
        ("10", 10.0),
        ("Score: 7 – 8", None),
        ("**Score: 7**", 7.0),
        ("Grade: 7 because 3 of 4 steps are right", 7.0),
        ("Score: 7, as 3 out of 4 is right", 7.0),
        ("Score: 7 of the 10", 7.0),
        ("**Final score**: `7`", 7.0),
        ("The score of this response is 7.", None),
    ],
)
def test_a_grade_is_labelled_or_alone_and_of_the_scale(text: str, grade: float | None) -> None:
    assert find_grade(text, 10.0) == grade


class Judge(ThreadingHTTPServer):
    """Answers a request by `answer`, which takes its body."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], tuple[int, str]] = lambda _: said("Score: 5")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, **body})
        status, text = self.server.answer(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


def said(text: str | None, reason: str = "stop") -> tuple[int, str]:
    """An answer of OpenAI's API."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return 200, json.dumps({"choices": [{**choice, "finish_reason": reason}]})


@pytest.fixture
def judge() -> Iterator[Judge]:
    with Judge() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def spec(url: str, **settings: Any) -> RewardSpec:
    fields = {"url": url, "model": "grader", "prompt": QUESTION, "maxRetries": 0}
    return RewardSpec.model_validate({"name": "judge", "judge": {**fields, **settings}})


def sample(response: str, **record: Any) -> Sample:
    return Sample("user: 1+1", response, {"question": "1+1", **record}, True)


def test_every_response_is_asked_about_and_grades_are_shares_of_the_scale(judge: Judge) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, str]:
        response = body["messages"][-1]["content"].split("Answer: ")[1].split("\n")[0]
        return said(f"Score: {response}")

    judge.answer = answer
    settings = {"scale": {"lowest": 1, "highest": 5}, "systemPrompt": "Be strict."}
    scorer = JudgeScorer(spec(f"{judge.url}/", maxTokens=99, **settings))
    try:
        scored = scorer.submit([sample(text) for text in ("1", "2", "5", "6", "0.5")]).result(20)
    finally:
        scorer.close()
    assert scored.values.tolist()[:3] == [0.0, 0.25, 1.0]
    assert scored.valid.tolist() == [True, True, True, False, False]
    first = min(judge.asked, key=lambda body: body["messages"][-1]["content"])
    assert first == {
        "path": "/v1/chat/completions",
        "model": "grader",
        "messages": [
            {"role": "system", "content": "Be strict."},
            {
                "role": "user",
                "content": "Question: 1+1\nAnswer: 0.5\nGrade it from 0 to 10.",
            },
        ],
        "temperature": 0.0,
        "max_tokens": 99,
    }


@pytest.mark.parametrize(
    ("answer", "fault", "detail"),
    [
        (said("I like it."), "unreadable", "got 'I like it.', allowed a grade from 0 to 10"),
        (said("Score: 11"), "unreadable", "got 'Score: 11'"),
        (said("no grade \ud83d"), "unreadable", "got 'no grade ?'"),
        ((200, "[" * 100_000), "unreadable", "got '[[["),
        (
            said("Score: 7", reason="length"),
            "unreadable",
            "allowed an answer within maxTokens = 512",
        ),
        (said(None), "unreadable", 'got \'{"choices"'),
        ((200, "<html>hello</html>"), "unreadable", "got '<html>"),
        ((200, '{"choices": []}'), "unreadable", "got '{\"choices\": []}'"),
        ((200, "[1]"), "unreadable", "got '[1]'"),
        ((404, "no such model"), "refused", "status 404 Not Found: 'no such model'"),
        ((302, ""), "refused", "status 302"),
        ((503, "busy"), "refused", "status 503"),
        ((200, '"' + "x" * 10_000_000 + '"'), "unreadable", "got '\"xxx"),
    ],
)
def test_what_is_no_grade_costs_its_own_sample(
    judge: Judge, answer: tuple[int, str], fault: str, detail: str
) -> None:
    judge.answer = lambda body: answer if "bad" in str(body["messages"]) else said("Score: 10")
    scorer = JudgeScorer(spec(judge.url))
    try:
        scores = scorer.submit([sample("good"), sample("bad"), sample("good")]).result(20)
    finally:
        scorer.close()
    assert scores.values.tolist() == [1.0, 0.0, 1.0]
    assert dict(scores.errors) == {fault: 1}
    (failure,) = scores.failures
    assert failure.start == 1 and detail in failure.detail and len(failure.detail) < 500


def test_a_busy_judge_is_asked_again(judge: Judge) -> None:
    answers = [(429, "later"), (500, "oops"), said("Score: 10")]
    judge.answer = lambda _: answers.pop(0)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    scorer = JudgeScorer(spec(judge.url, maxRetries=2), sleep)
    try:
        assert scorer.submit([sample("a")]).result(20).values.tolist() == [1.0]
    finally:
        scorer.close()
    assert len(waits) == 2


def test_as_many_responses_are_asked_about_at_once_as_allowed(judge: Judge) -> None:
    # More than aiohttp's own limit, behind which requests would wait while their time runs.
    together = threading.Barrier(120)

    def answer(_: dict[str, Any]) -> tuple[int, str]:
        together.wait(10)
        return said("Score: 10")

    judge.answer = answer
    scorer = JudgeScorer(spec(judge.url, maxConcurrency=120))
    try:
        assert scorer.submit([sample("a")] * 120).result(20).valid.all()
    finally:
        scorer.close()


def test_the_request_is_adapted_to_the_api(judge: Judge) -> None:
    settings = {
        "parameters": {"max_completion_tokens": 9, "temperature": 1.0, "top_p": 0.5},
        "chatTemplateArguments": {"enable_thinking": False},
    }
    scorer = JudgeScorer(spec(f"{judge.url}/?api-version=1", **settings))
    try:
        assert scorer.submit([sample("a")]).result(20).valid.all()
    finally:
        scorer.close()
    (asked,) = judge.asked
    del asked["messages"]
    assert asked == {
        "path": "/v1/chat/completions?api-version=1",
        "model": "grader",
        "temperature": 1.0,
        "max_completion_tokens": 9,
        "top_p": 0.5,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_a_question_takes_entries_of_the_row(judge: Judge) -> None:
    prompt = (
        '{prompt}|{record.meta.level}|{record.tags}|{"score": 0}|\\boxed{{x}}|{response}'
        "|{record.a column}"
    )
    scorer = JudgeScorer(spec(judge.url, prompt=prompt))
    row = {"meta": {"level": "é"}, "tags": [1, "b"], "a column": 3}
    rows = [sample("{prompt}", **row), sample("b", tags=[])]
    try:
        scores = scorer.submit(rows).result(20)
    finally:
        scorer.close()
    (asked,) = judge.asked
    expected = 'user: 1+1|é|[1, "b"]|{"score": 0}|\\boxed{x}|{prompt}|3'
    assert asked["messages"][0]["content"] == expected
    (failure,) = scores.failures
    assert failure.start == 1
    assert "no entry for {record.meta.level}: allowed question, tags" in failure.detail


def test_no_message_has_a_secret_that_the_judge_repeats(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    headers = [{"name": "Authorization", "valueFromEnv": "JUDGE_TOKEN", "prefix": "Bearer "}]
    answers = [(401, "no: Bearer s3cret"), said("You sent s3cret."), (503, "s3cret is busy")]
    judge.answer = lambda _: answers.pop(0)
    scorer = JudgeScorer(spec(judge.url, headers=headers, maxConcurrency=1))
    try:
        scores = scorer.submit([sample(text) for text in "abc"]).result(20)
    finally:
        scorer.close()
    details = "\n".join(failure.detail for failure in scores.failures)
    assert "s3cret" not in details
    for text in ("no: Bearer ***", "You sent ***.", "*** is busy"):
        assert text in details


def test_missing_credentials_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_TOKEN", raising=False)
    headers = [{"name": "Authorization", "valueFromEnv": "JUDGE_TOKEN", "prefix": "Bearer "}]
    with pytest.raises(RewardError, match="got nothing in JUDGE_TOKEN"):
        JudgeScorer(spec("http://judge/v1", headers=headers))
