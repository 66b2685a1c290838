"""What verifiers and services say of real rows, before anything starts."""

from __future__ import annotations

import json
import re
import socket
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.load import PROMPTS_ONLY
from rlhf_runtime.preflight.data import check_data
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.reward_trial import DETAIL_CHARACTERS, try_rewards
from rlhf_runtime.preflight.rewards import check_services, check_verifiers, start_verifiers
from rlhf_runtime.preflight.trial_rows import TrialRow

VERIFIERS = """
    import os, time

    def right(samples):
        return [float(sample.response == sample.record["answer"]) for sample in samples]

    def length(samples, field=""):
        return [float(len(sample.response)) for sample in samples]

    def penalty(samples):
        return [-2.0 if sample.response else 0.0 for sample in samples]

    def zero(samples):
        return [0.0] * len(samples)

    def abstains(samples):
        return [None] * len(samples)

    def answers_only(samples):
        return [1.0 if sample.response else None for sample in samples]

    def misspelt(samples):
        return [float(sample.anser == "1") for sample in samples]

    def misspelt_later(samples):
        return [0.0 if not sample.response else sample.record["anser"] for sample in samples]

    def last_character(samples):
        return [float(sample.response[-1] == "1") for sample in samples]

    def nothing(samples):
        [1.0 for sample in samples]

    def one_number(samples):
        return 1.0

    def text(samples):
        return "12"

    def words(samples):
        return ["right" for sample in samples]

    def first_only(samples):
        return [1.0]

    def not_two(samples):
        return [1.0 / (2 - float(sample.response or 0)) for sample in samples]

    def alone(samples):
        (sample,) = samples
        return [float(sample.response == sample.record["answer"])]

    def hangs(samples):
        time.sleep(3600)

    def talks_and_dies(samples):
        for number in range(2000):
            print("\\x1b[31m", number, "x" * 1000)
        os._exit(3)
"""
ROWS = [
    TrialRow(f"data.train: row {number}", f"{number}=", {"answer": str(number)}, None, str(number))
    for number in (1, 2, 3)
]
UNANSWERED = [TrialRow("data.train: row 0", "0=", {}, None, None)]


@pytest.fixture(autouse=True)
def verifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tried.py").write_text(textwrap.dedent(VERIFIERS))
    monkeypatch.syspath_prepend(str(tmp_path))


def function(name: str, weight: float = 1.0, role: str = "reward", **settings: Any) -> Any:
    """A reward of a function, under the function's name."""
    entrypoint = name if ":" in name else f"tried:{name}"
    called = {"entrypoint": entrypoint, **settings}
    short = entrypoint.rpartition(":")[2]
    return {"name": short, "weight": weight, "role": role, "function": called}


def spec_of(*rewards: Any, **fields: Any) -> RLHFJobSpec:
    return RLHFJobSpec.model_validate(
        {
            "algorithm": {"type": "GRPO"},
            "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
            "data": {"train": {"builtin": "SortDigits"}},
            "rewards": rewards,
            "rollout": {"samplesPerPrompt": 2, "maxPromptTokens": 256},
            "schedule": {"steps": 1, "promptsPerStep": 2},
        }
        | fields
    )


def tried(spec: RLHFJobSpec, rows: Sequence[TrialRow] = ROWS, one_machine: bool = True) -> Findings:
    findings = Findings()
    with start_verifiers(spec, 60.0, one_machine) as started:
        loaded = check_verifiers(spec, started, one_machine, findings)
        services = check_services(spec, one_machine, findings)
        try_rewards(spec, loaded, services, rows, one_machine, findings)
    return findings


def test_every_reward_says_what_it_gives_answers_and_empty_responses() -> None:
    rewards = [function("right"), function("length", weight=0), function("answers_only")]
    findings = tried(spec_of(*rewards))
    assert not findings.gathered.errors and not findings.warnings and not findings.unchecked
    assert findings.facts[:3] == [
        f"data.train: row {number}, the reward right: 1 for the answer '{number}', "
        "0 for an empty response"
        for number in (1, 2, 3)
    ]
    assert findings.facts[-1] == (
        "data.train: row 3, the reward answers_only: 1 for the answer '3', "
        "abstains for an empty response"
    )
    assert len(findings.facts) == 9


def test_a_builtin_verifier_gets_the_answer_that_it_reads() -> None:
    """A written conversation, which is trained on, may end with another one."""
    row = TrialRow("data.train: row 1", "(1+1)*2=", {"answer": "4"}, None, "2")
    exact_match = function("rlhf_runtime.rewards.exact_match:score")
    assert tried(spec_of(exact_match, function("length")), [row]).facts == [
        "data.train: row 1, the reward score: 1 for the answer '4', 0 for an empty response",
        "data.train: row 1, the reward length: 1 for the answer '2', 0 for an empty response",
    ]


MISTAKES = {
    "misspelt": "(?s)got raised for the answer '1', data.train: row 1, allowed .*'anser'",
    "misspelt_later": "(?s)got raised for the answer '1'.*KeyError: 'anser'",
    "last_character": "(?s)got raised for an empty response.*IndexError",
    "nothing": "TypeError: got NoneType for 1 samples, allowed one number for each sample",
    "one_number": "TypeError: got float for 1 samples, allowed one number for each sample",
    "text": "got str for 2 samples, allowed one number for each sample",
    "words": "got 'right', allowed a finite number",
    "first_only": "got 1 values for 2 samples, allowed one number for each sample",
}


def test_mistakes_of_verifiers_are_errors_at_their_fields() -> None:
    findings = tried(spec_of(*map(function, [*MISTAKES, "right"])))
    errors = findings.gathered.errors
    assert len(errors) == len(MISTAKES)
    for index, (error, (name, message)) in enumerate(zip(errors, MISTAKES.items(), strict=True)):
        assert (error.reason, error.exit_code) == ("InvalidReward", 3)
        assert error.location == ("spec", "rewards", index, "function", "entrypoint")
        assert str(error).startswith(f"the reward {name} (tried:{name}) gives no score: got ")
        assert re.search(message, str(error)), str(error)
        assert "; correct the function or the row:\n" in str(error)


@pytest.mark.parametrize("on_error", ["Exclude", "Zero", "Fail"])
def test_a_failure_on_some_rows_is_an_error_if_it_ends_a_job(on_error: str) -> None:
    findings = tried(spec_of(function("not_two", onError=on_error)))
    if on_error == "Fail":
        assert "ZeroDivisionError" in str(findings.gathered.errors[0])
        return
    assert not findings.gathered.errors
    assert findings.facts[1] == (
        "data.train: row 2, the reward not_two: raised for the answer '2', "
        "0.5 for an empty response"
    )
    (warning,) = findings.warnings
    assert warning.startswith("for 1 of 3 responses the reward not_two (tried:not_two) gives no")


def test_a_function_that_takes_no_batch_is_a_warning() -> None:
    findings = tried(spec_of(function("alone")))
    assert not findings.gathered.errors and "1 for the answer '1'" in findings.facts[0]
    (warning,) = findings.warnings
    assert "no sample fails when it is scored alone, but together they do" in warning


def test_a_verifier_that_hangs_is_tried_once_for_its_time_limit() -> None:
    findings = tried(spec_of(function("hangs", timeoutSeconds=1)), UNANSWERED * 3)
    (error,) = findings.gathered.errors
    assert "got timedOut for an empty response" in str(error)
    assert "or raise timeoutSeconds:\n    a batch took longer than timeoutSeconds = 1" in str(error)
    assert len(findings.facts) == 1


def test_what_a_verifier_prints_does_not_flood_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    (error,) = tried(spec_of(function("talks_and_dies"))).gathered.errors
    assert "ended with exit code 3; it last printed:" in str(error)
    assert "\x1b" not in str(error) and len(str(error)) < DETAIL_CHARACTERS + 500
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("rewards", "gain"),
    [
        ([function("zero")], "at most +0 for the sum of zero in 3 rows"),
        ([function("abstains")], "at most +0 for the sum of abstains in 3 rows"),
        ([function("right"), function("penalty")], "at most -1 for the sum of right, penalty in 3"),
        ([function("zero"), function("right", role="cost")], "at most +0 for the sum of zero in"),
        ([function("right"), function("penalty", weight=0.1)], ""),
        ([function("right"), function("zero", role="cost")], ""),
        ([function("zero", weight=0), function("right", role="cost")], ""),
        ([function("zero", role="cost")], "at most +0 for the sum of zero in"),
        ([function("zero"), {"name": "learned", "model": {"path": "/judge"}}], ""),
    ],
)
def test_answers_without_a_higher_reward_than_silence_are_a_warning(
    rewards: list[Any], gain: str
) -> None:
    algorithm = {"type": "Custom", "custom": {"entrypoint": "mine:Mine"}}
    findings = tried(spec_of(*rewards, algorithm=algorithm))
    assert not findings.gathered.errors
    assert [gain in warning for warning in findings.warnings] == ([True] if gain else [])


def test_without_answers_only_empty_responses_are_tried() -> None:
    findings = tried(spec_of(function("zero")), UNANSWERED)
    assert findings.facts == ["data.train: row 0, the reward zero: 0 for an empty response"]
    assert findings.unchecked == [
        "scores of right answers: the rows that were tried have none (answerField names it)"
    ]
    assert not findings.warnings


def test_what_is_not_there_is_not_tried() -> None:
    findings = tried(spec_of(function("zero")), [])
    assert findings.unchecked == ["scores of verifiers: there are no rows here to try them on"]
    for rewards in ([], [{"name": "learned", "model": {"path": "/judge"}}]):
        sft = {"algorithm": {"type": "SFT"}} if not rewards else {}
        findings = tried(spec_of(*rewards, **sft), [])
        assert not findings.facts and not findings.unchecked and not findings.gathered.errors


def test_what_may_fail_on_this_machine_only_is_left_to_workers() -> None:
    spec = spec_of(function("misspelt"), function("first_only"))
    findings = tried(spec, one_machine=False)
    assert findings.unchecked == [
        "the reward misspelt: here it gives no score (raised) for the answer '1', data.train: "
        "row 1: AttributeError: 'Sample' object has no attribute 'anser'"
    ]
    (error,) = findings.gathered.errors
    assert "got wrongCount" in str(error)


@pytest.fixture
def serve() -> Iterator[Callable[[str], str]]:
    """Starts a service with one answer; returns its address."""
    servers: list[HTTPServer] = []

    def start(answer: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *_: Any) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,)).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/score"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_services_are_asked(serve: Callable[[str], str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}/score"
        urls = {
            "good": serve('{"scores": [0.5, 0.5]}'),
            "prose": serve("The answer looks fine to me."),
            "absent": nowhere,
        }
        settings: dict[str, Any] = {"maxRetries": 0, "onError": "Fail"}
        rewards = [{"name": name, "http": {"url": url, **settings}} for name, url in urls.items()]
        # Samples after one that failed are asked for, too.
        rewards[1]["http"] |= {"batchSize": 1, "maxConcurrency": 1}
        findings = tried(spec_of(*rewards))
    assert findings.facts[0] == (
        "data.train: row 1, the reward good: 0.5 for the answer '1', 0.5 for an empty response"
    )
    (error,) = findings.gathered.errors
    assert error.location == ("spec", "rewards", 1, "http", "url")
    assert "got unreadable" in str(error) and "got 'The answer looks fine to me.'" in str(error)
    assert not findings.warnings, "the sum of the rewards is unknown"
    # It may start later than the job.
    (unchecked,) = findings.unchecked
    assert unchecked.startswith("the reward absent: here it gives no score (unreachable)")


def test_a_service_whose_credentials_are_elsewhere_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JUDGE_TOKEN", raising=False)
    header = {"name": "Authorization", "valueFromEnv": "JUDGE_TOKEN", "prefix": "Bearer "}
    http = {"url": "http://127.0.0.1:1/score", "headers": [header]}
    spec = spec_of({"name": "judge", "http": http})
    (unchecked,) = tried(spec, one_machine=False).unchecked
    assert "no value for the header Authorization of the reward judge: got nothing" in unchecked
    findings = tried(spec)
    (error,) = findings.gathered.errors
    assert error.location == ("spec", "rewards", 0, "http", "headers") and not findings.unchecked
    monkeypatch.setenv("JUDGE_TOKEN", "abc")
    (unchecked,) = tried(spec).unchecked
    assert "here it gives no score (unreachable)" in unchecked


def test_entries_that_a_judges_question_names_are_looked_for_in_the_rows(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    rows = [{"prompt": "1", "answer": "2", "level": {"name": "a"}}, {"prompt": "1", "answer": "2"}]
    data = {"train": write_rows(tmp_path / "rows.jsonl", *rows)}
    judge = {"url": "http://127.0.0.1:1/v1", "model": "m"}
    findings = []
    for name in ("level.name", "nope"):
        question = f"{{record.{name}}} {{record.answer}} {{response}}"
        spec = spec_of({"name": "judge", "judge": {**judge, "prompt": question}}, data=data)
        findings.append(Findings())
        check_data(spec, PROMPTS_ONLY, tmp_path, None, findings[-1])
    assert findings[0].warnings == [
        "a judge cannot be asked about 1 of 2 rows of data.train: row 1 has no {record.level.name}"
    ]
    (error,) = findings[1].gathered.errors
    assert error.location == ("spec", "rewards", 0, "judge", "prompt")
    assert "no row of data.train has: got {record.nope}, allowed prompt, answer, level" in str(
        error
    )


def test_only_the_rows_that_a_reward_applies_to_are_checked_and_tried(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    rows = [
        {"prompt": "1", "task": "sort", "answer": "2"},
        {"prompt": "1", "task": "talk"},
        {"prompt": "1", "task": "other"},
    ]
    data = {"train": write_rows(tmp_path / "rows.jsonl", *rows)}
    exact = {"function": {"entrypoint": "rlhf_runtime.rewards.exact_match:score"}}
    sort = {"name": "sort", **exact, "where": {"field": "task", "values": ["sort"]}}
    talk = {**function("length"), "where": {"field": "task", "values": ["talk"]}}
    spec, findings = spec_of(sort, talk, data=data), Findings()
    tried_rows = check_data(spec, PROMPTS_ONLY, tmp_path, None, findings)
    assert not findings.gathered.errors
    (warning,) = findings.warnings
    assert "no reward applies to 1 of 3 rows of data.train, such as row 2" in warning
    facts = tried(spec, tried_rows).facts
    assert [fact.partition("the reward ")[2] for fact in facts if "length" in fact] == [
        "length: abstains for the answer '2', abstains for an empty response",
        "length: 0 for an empty response",
        "length: abstains for an empty response",
    ]


def rows_of(spec: RLHFJobSpec, tokenizer: Path) -> Sequence[TrialRow]:
    findings = Findings()
    rows = check_data(spec, PROMPTS_ONLY, tokenizer, None, findings)
    assert not findings.gathered.errors
    return rows


def write_rows(file: Path, *rows: Any) -> dict[str, Any]:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(file)}


def test_a_row_has_the_answer_that_a_reward_reads(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    row = {"prompt": "1", "answer": "2", "truth": {"text": ["3", "4"]}, "empty": ""}
    data = {"train": write_rows(tmp_path / "rows.jsonl", *[row] * 5)}
    fields = [{}, {"field": "truth.text"}, {"field": "empty"}, {"field": "gone"}, {"field": 7}]
    spec = spec_of(*[function("length", parameters=each) for each in fields[:1]], data=data)
    rows = rows_of(spec, tmp_path)
    assert [row.name for row in rows] == [f"data.train: row {number}" for number in range(3)]
    references = [
        rows[0].reference(spec_of(function("length", parameters=each)).rewards[0])
        for each in fields
    ]
    assert references == ["2", "3", "2", "2", "2"]
    sample = rows[0].sample("5")
    assert (sample.prompt, sample.response, sample.finished) == (rows[0].prompt, "5", True)
    assert sample.record == row and sample.source is None


def test_rows_of_every_source_are_tried(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    row = {"prompt": "1", "answer": "2"}
    sources = [
        {"name": name, **write_rows(tmp_path / f"{name}.jsonl", *[row] * 4)} for name in ("a", "b")
    ]
    spec = spec_of(function("zero"), data={"train": {"sources": sources}})
    rows = rows_of(spec, tmp_path)
    assert [(row.name, row.source) for row in rows] == [
        (f"data.train.sources[{index}]: row {number}", name)
        for index, name in enumerate("ab")
        for number in (0, 1)
    ]


def test_conversations_and_held_out_rows_have_answers(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    turns = [{"role": "user", "content": "12"}, {"role": "assistant", "content": "3"}]
    chats = write_rows(tmp_path / "chats.jsonl", {"messages": turns}, {"messages": turns})
    chats |= {"promptField": "messages", "answerField": "messages"}
    # Preference pairs are not scored, so the evaluation's rows are taken.
    pairs = write_rows(tmp_path / "pairs.jsonl", *[{"prompt": "1", "a": "2", "b": "3"}] * 2)
    pairs |= {"preferences": {"chosenField": "a", "rejectedField": "b"}}
    data = {"train": pairs, "evaluation": chats}
    rows = rows_of(spec_of(function("zero"), algorithm={"type": "DPO"}, data=data), tmp_path)
    assert [(row.name, row.answer) for row in rows] == [
        ("data.evaluation: row 0", "3"),
        ("data.evaluation: row 1", "3"),
    ]


def test_the_form_of_gsm8k_is_scored_by_its_verifier(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    answer = "48/2 = <<48/2=24>>24 clips in May.\n24+48 = <<24+48=72>>72 in all.\n#### 72"
    train = write_rows(tmp_path / "rows.jsonl", *[{"question": "1", "answer": answer}] * 2)
    spec = spec_of(
        function("rlhf_runtime.rewards.math:verify"),
        data={"train": train | {"promptField": "question"}},
    )
    findings = tried(spec, rows_of(spec, tmp_path))
    assert not findings.gathered.errors and not findings.warnings
    assert findings.facts[0].startswith(
        "data.train: row 0, the reward verify: 1 for the answer '48"
    )
    assert findings.facts[0].endswith(" all.\\n#### 72', 0 for an empty response")


def test_generated_tasks_are_scored_by_their_verifier(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="an extra that needs a C compiler")
    write_tokenizer(tmp_path)
    spec = spec_of(
        function("rlhf_runtime.rewards.reasoning_gym:score"),
        data={"train": {"reasoningGym": {"dataset": "spell_backward", "size": 2}}},
    )
    findings = tried(spec, rows_of(spec, tmp_path))
    assert not findings.gathered.errors and not findings.warnings
    assert [" 1 for the answer " in fact for fact in findings.facts] == [True, True]
