"""`rlhf samples` shows what there is, and says what there is where it finds nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_api.spec.stopping import StopReason
from rlhf_cli.app import app
from rlhf_cli.run_samples import SampleQuery, find_samples
from rlhf_runtime.telemetry.conversations import ConversationTurn, ConversationView, ToolUse
from rlhf_runtime.telemetry.errors import NoSamples
from rlhf_runtime.telemetry.records import EvaluationRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples import ResponseSample, SampleKind

SCORES = [0.5, None, -1.0, 2.0]


def written(
    kind: SampleKind, step: int, scores: Sequence[float | None] = SCORES
) -> list[ResponseSample]:
    """Two responses each to prompts 100, 101, ..."""
    return [
        ResponseSample(
            kind=kind,
            step=step,
            prompt_id=100 + number // 2,
            sample=number % 2,
            row=f"rows.jsonl, row {100 + number // 2}, counted from 0",
            prompt=f"question {number // 2}",
            response=f"answer {number} of {kind.value} {step}\nits second line",
            tokens=9,
            ended_by=StopReason.TOKEN_LIMIT if number else StopReason.END_TOKEN,
            scores={"reward": score},
            advantage=0.25 if kind is SampleKind.STEP else None,
        )
        for number, score in enumerate(scores)
    ]


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    with RunFolder(tmp_path) as folder:
        folder.append(EvaluationRecord(0, {}))
        for step in (1, 10, 20):
            folder.write_samples(written(SampleKind.STEP, step))
        for step in (0, 20):
            folder.write_samples(written(SampleKind.EVALUATION, step))
    return folder


def rlhf_samples(folder: RunFolder, *words: str) -> Result:
    return CliRunner().invoke(app, ["samples", str(folder.path), *words])


def shown(folder: RunFolder, *words: str) -> list[tuple[str, int, int, int]]:
    """Kind, step, prompt and number of each sample that is printed as JSON."""
    result = rlhf_samples(folder, *words, "--json")
    assert result.exit_code == 0, result.output
    return [
        (sample["kind"], sample["step"], sample["prompt_id"], sample["sample"])
        for sample in json.loads(result.stdout)
    ]


def of(kind: str, step: int, *numbers: int) -> list[tuple[str, int, int, int]]:
    return [(kind, step, 100 + number // 2, number % 2) for number in numbers]


def test_the_last_evaluation_is_shown_unless_asked_for_another(run_folder: RunFolder) -> None:
    assert shown(run_folder) == of("evaluation", 20, 0, 1, 2, 3)
    assert shown(run_folder, "--evaluation", "--step", "0") == of("evaluation", 0, 0, 1, 2, 3)
    assert shown(run_folder, "--step", "20") == of("step", 20, 0, 1, 2, 3)
    for path in run_folder.samples.glob("evaluation-*"):
        path.unlink()
    assert shown(run_folder) == of("step", 20, 0, 1, 2, 3)


def test_samples_are_ordered_by_score_and_those_without_come_last(run_folder: RunFolder) -> None:
    assert shown(run_folder, "--best") == of("evaluation", 20, 3, 0, 2, 1)
    assert shown(run_folder, "--worst", "--limit", "2") == of("evaluation", 20, 2, 0)
    result = rlhf_samples(run_folder, "--worst", "--best")
    assert result.exit_code == 2 and "exclude each other" in result.output


def test_a_prompt_is_followed_over_all_evaluations(run_folder: RunFolder) -> None:
    both = of("evaluation", 0, 2, 3) + of("evaluation", 20, 2, 3)
    assert shown(run_folder, "--prompt", "101") == both
    assert shown(run_folder, "--prompt", "101", "--step", "10") == of("step", 10, 2, 3)


def test_a_block_has_prompt_response_scores_and_end(run_folder: RunFolder) -> None:
    result = rlhf_samples(run_folder, "--step", "10", "--limit", "2")
    assert result.stdout == (
        "step 10, prompt 100  reward=0.5 advantage=0.25 (9 tokens, EndToken)\n"
        "rows.jsonl, row 100, counted from 0\n"
        "prompt\n  question 0\n"
        "response\n  answer 0 of step 10\n  its second line\n\n"
        "step 10, prompt 100, response 1  reward=none advantage=0.25 (9 tokens, TokenLimit)\n"
        "rows.jsonl, row 100, counted from 0\n"
        "prompt\n  question 0\n"
        "response\n  answer 1 of step 10\n  its second line\n\n"
    )


def test_a_conversation_is_shown_turn_by_turn(run_folder: RunFolder) -> None:
    (sample,) = written(SampleKind.STEP, 40, [1.0])
    calls = (ToolUse("add(a=1)", "2\x1b[2J"), ToolUse("add(", "no end", is_error=True))
    turns = (
        ConversationTurn(0, "add(1)\nadd(", calls, 0.5),
        ConversationTurn(7, "3", (ToolUse("add()", None),)),
    )
    view = ConversationView(turns, {"right": 1.0}, "ToolDeadline: slow", 8)
    run_folder.write_samples([replace(sample, conversation=view)])
    result = rlhf_samples(run_folder, "--step", "40")
    _, _, rest = result.stdout.partition("prompt\n  question 0\n")
    assert rest == (
        "turn 1  reward=0.5\n  add(1)\n  add(\n"
        "call add(a=1)\n  2\\x1b[2J\n"
        "call add(\n  no end\n"
        "6 turns are left out\n"
        "turn 8\n  3\n"
        "call add()\n  (not made)\n"
        "reward of the environment: right=1\n"
        "failed\n  ToolDeadline: slow\n\n"
    )
    (shown_as_json,) = json.loads(rlhf_samples(run_folder, "--step", "40", "--json").stdout)
    assert shown_as_json["conversation"]["turns"][0]["calls"][1]["is_error"] is True


def test_a_response_cannot_control_the_terminal(run_folder: RunFolder) -> None:
    (sample,) = written(SampleKind.STEP, 30, [1.0])
    hostile = "[red]\x1b[2J\x07\r\x9b1m\u202e\u2066\ud800\u2028 \u4e2d\u200d\tend" + "x" * 300
    folder = run_folder
    texts = {"response": hostile, "scores": {"\x1b]0;reward": 1.0}}
    folder.write_samples([ResponseSample(**{**vars(sample), **texts})])
    result = rlhf_samples(folder, "--step", "30")
    assert r"\x1b]0;reward=1" in result.stdout
    line = r"  [red]\x1b[2J\x07\r\x9b1m\u202e\u2066\ud800\u2028 " + "\u4e2d\u200d"
    assert f"\n{line}" in result.stdout
    assert "end" + "x" * 300 in result.stdout, "lines are not wrapped"
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e", "\u2066", "\u2028"} & set(result.stdout)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (SampleQuery(step=7), r"got step 7 of .*, allowed --step 1, 10, 20 or --evaluation --step "
         r"0, 20; give one of these"),
        (SampleQuery(step=10, evaluation=True), "got evaluation after step 10 of"),
        (SampleQuery(prompt=9), "got prompt 9 in samples of evaluations, allowed 100, 101; give"),
    ],
)  # fmt: skip
def test_an_error_says_which_samples_there_are(
    run_folder: RunFolder, query: SampleQuery, says: str
) -> None:
    with pytest.raises(NoSamples, match=says):
        find_samples(run_folder, query)


def test_many_steps_are_named_by_their_ends(run_folder: RunFolder) -> None:
    for step in range(30, 1000, 10):
        run_folder.write_samples(written(SampleKind.STEP, step))
    with pytest.raises(NoSamples, match=r"--step 1, 10, 20, 30, 40, 50, \.\.\., 940, .*, 990 or"):
        find_samples(run_folder, SampleQuery(step=7))


def test_samples_that_were_fetched_alone_are_shown(run_folder: RunFolder) -> None:
    run_folder.metrics.unlink()
    assert shown(run_folder, "--limit", "1") == of("evaluation", 20, 0)


def test_a_run_without_samples_says_how_to_get_some(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.append(EvaluationRecord(0, {}))
    result = rlhf_samples(folder)
    assert result.exit_code == 2
    assert "telemetry.samplesEverySteps is 0, nothing was generated yet" in result.output
    result = rlhf_samples(RunFolder(tmp_path))
    assert result.exit_code == 2 and "NotARun: no run in this folder" in result.output
