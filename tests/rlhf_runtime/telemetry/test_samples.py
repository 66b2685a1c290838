"""Samples are written thinly, shortened, and read back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.telemetry.conversations import ConversationTurn, ConversationView, ToolUse
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples import (
    MAX_FILES,
    MAX_PROMPT_CHARACTERS,
    MAX_RESPONSE_CHARACTERS,
    ResponseSample,
    SampleKind,
    is_sampled,
    to_lines,
)
from rlhf_runtime.telemetry.shortened_text import shorten

from ..controller.jobs import make_job


def a_sample(
    step: int = 10, kind: SampleKind = SampleKind.STEP, **changes: object
) -> ResponseSample:
    sample = ResponseSample(
        kind=kind,
        step=step,
        prompt_id=7,
        sample=0,
        row="rows.jsonl, row 7, counted from 0",
        prompt="402991=",
        response="012499",
        tokens=7,
        ended_by=StopReason.END_TOKEN,
        scores={"reward": 1.0, "reward/short": None},
        advantage=0.5,
    )
    return dataclasses.replace(sample, **changes)  # type: ignore[arg-type]


def a_conversation(num_turns: int, text: str = "add(1)") -> ConversationView:
    """Turns with a call, a malformed one, and one that is not made."""
    uses = (ToolUse("add(a=1)", text), ToolUse(text, "no", is_error=True), ToolUse("add()", None))
    turns = tuple(ConversationTurn(number, text, uses, 0.5) for number in range(num_turns))
    return ConversationView(turns, {"right": 1.0}, "ToolDeadline: too slow", num_turns)


def spec_of(every: int, steps: int, evaluate_every: int = 25) -> RLHFJobSpec:
    schedule = {"steps": steps, "promptsPerStep": 16, "evaluateEverySteps": evaluate_every}
    return make_job(schedule=schedule, telemetry={"samplesEverySteps": every}).spec


def sampled(spec: RLHFJobSpec, kind: SampleKind, last: int) -> list[int]:
    return [step for step in range(last + 1) if is_sampled(spec, kind, step)]


def test_the_first_step_and_every_nth_have_samples() -> None:
    spec = spec_of(every=4, steps=12)
    assert sampled(spec, SampleKind.STEP, 12)[1:] == [1, 4, 8, 12]


def test_every_evaluation_has_samples() -> None:
    spec = spec_of(every=10, steps=70, evaluate_every=25)
    assert [s for s in (0, 25, 50, 70) if is_sampled(spec, SampleKind.EVALUATION, s)] == [
        *(0, 25, 50, 70)
    ]
    # Evaluations before and after training only, or of a model: any step.
    assert is_sampled(spec_of(10, steps=70, evaluate_every=0), SampleKind.EVALUATION, 13)


def test_none_are_written_where_the_manifest_wants_none() -> None:
    spec = spec_of(every=0, steps=10)
    assert not any(is_sampled(spec, kind, step) for kind in SampleKind for step in range(11))


def test_long_jobs_have_a_bounded_number_of_files() -> None:
    spec = spec_of(every=3, steps=5000, evaluate_every=2)
    steps = sampled(spec, SampleKind.STEP, 5000)[1:]
    evaluations = [step for step in sampled(spec, SampleKind.EVALUATION, 5000) if step % 2 == 0]
    for numbers in (steps, evaluations):
        assert MAX_FILES // 2 < len(numbers) <= MAX_FILES + 2
    assert {step % 3 for step in steps[1:]} == {0}
    assert (evaluations[0], evaluations[-1]) == (0, 5000)


def test_samples_are_read_back_as_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    odd = "</script>\x00\u202e\ud800\n\U0001f600"
    samples = [
        a_sample(),
        a_sample(sample=1, prompt=odd, response=odd, advantage=None, scores={}),
        a_sample(sample=2, ended_by=StopReason.TOKEN_LIMIT, scores={"reward": None}),
        a_sample(sample=3, conversation=a_conversation(2, odd)),
    ]
    evaluation = [a_sample(0, SampleKind.EVALUATION)]
    folder.write_samples(samples)
    folder.write_samples(evaluation)
    assert folder.read_samples(SampleKind.STEP, 10) == samples
    assert folder.read_samples(SampleKind.EVALUATION, 0) == evaluation
    assert folder.read_samples(SampleKind.STEP, 11) == []
    assert [folder.sampled_steps(kind) for kind in SampleKind] == [[10], [0]]
    assert [samples[0].score, samples[1].score] == [1.0, None]


def test_a_step_that_is_run_again_replaces_its_samples(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_samples([a_sample(), a_sample(sample=1)])
    folder.write_samples([a_sample(response="again")])
    assert [sample.response for sample in folder.read_samples(SampleKind.STEP, 10)] == ["again"]
    assert [path.name for path in tmp_path.rglob("*.*")] == ["step-000010.jsonl"]


def test_damaged_lines_and_fields_of_newer_releases_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_samples([a_sample()])
    file = folder.samples / "step-000010.jsonl"
    newer = json.dumps(json.loads(file.read_text()) | {"sample": 1, "language": "en"})
    other = json.dumps({"kind": "step", "ended_by": "magic"})
    file.write_text(f"{newer}\n{other}\n[1]\nnull\n{newer[:40]}")
    (folder.samples / "step-x.jsonl").write_text("")
    assert folder.read_samples(SampleKind.STEP, 10) == [a_sample(sample=1)]
    assert folder.sampled_steps(SampleKind.STEP) == [10]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", None),
        ("tokens", True),
        ("step", "10"),
        ("prompt_id", "<b>"),
        ("sample", 0.0),
        ("row", 7),
        ("prompt", None),
        ("response", ["012499"]),
        ("ended_by", []),
        ("scores", [1.0]),
        ("scores", {"reward": "1.0"}),
        ("scores", {"reward": float("nan")}),
        ("scores", {"reward": 10**400}),
        ("advantage", {}),
        ("conversation", "add(1)"),
        ("conversation", {"turns": [], "reward": "1", "failure": 7, "num_turns": 0}),
        ("conversation", {"turns": [7], "reward": None, "failure": "", "num_turns": 1}),
    ],
)
def test_lines_with_values_of_other_types_are_left_out(
    field: str, value: object, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    folder.write_samples([a_sample()])
    file = folder.samples / "step-000010.jsonl"
    line = json.loads(file.read_text())
    whole_numbers = {"scores": {"reward": 1, "reward/short": None}}
    file.write_text(f"{json.dumps(line | {field: value})}\n{json.dumps(line | whole_numbers)}\n")
    assert folder.read_samples(SampleKind.STEP, 10) == [a_sample()]


@pytest.mark.parametrize(
    ("character", "size"),
    [("a", 1), ("\u044f", 2), ("\u4e2d", 3), ("\U0001f600", 4), ("\x01", 6), ("\udc80", 6)],
)
def test_the_texts_of_a_line_have_a_bounded_size(character: str, size: int) -> None:
    response = shorten(character * 10**5, MAX_RESPONSE_CHARACTERS)
    prompt = shorten(character * 10**5, MAX_PROMPT_CHARACTERS)
    line = to_lines([a_sample(prompt=prompt, response=response)])
    texts = size * (MAX_PROMPT_CHARACTERS + MAX_RESPONSE_CHARACTERS)
    assert texts < len(line) < texts + 500
