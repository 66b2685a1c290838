"""The report shows samples, and nothing that a model wrote becomes a part of the page."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.telemetry.report import write_report
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples import (
    MAX_PROMPT_CHARACTERS,
    MAX_RESPONSE_CHARACTERS,
    ResponseSample,
    SampleKind,
)
from rlhf_runtime.telemetry.samples_section import MAX_PASSES, TEXT_BUDGET, samples_section
from rlhf_runtime.telemetry.shortened_text import shorten

from .conftest import MakeRun
from .test_report import VOID, read
from .test_samples import a_conversation, a_sample


def responses(kind: SampleKind, step: int) -> list[ResponseSample]:
    """Two responses each to two prompts."""
    return [
        a_sample(
            step,
            kind,
            prompt_id=number // 2,
            sample=number % 2,
            prompt=f"question {number // 2}",
            response=f"{kind.value} {step} Wrote {number}",
            advantage=0.125 if kind is SampleKind.STEP else None,
        )
        for number in range(4)
    ]


@pytest.fixture
def sampled_run(make_run: MakeRun) -> RunFolder:
    folder = make_run(20)
    for step in (1, 10, 20):
        folder.write_samples(responses(SampleKind.STEP, step))
    for step in (0, 10, 20):
        folder.write_samples(responses(SampleKind.EVALUATION, step))
    return folder


def test_a_run_without_samples_has_no_section(make_run: MakeRun) -> None:
    assert samples_section(make_run(3)) == ""
    assert "samples" not in read(make_run(3)).headings()


def test_the_report_has_prompts_responses_and_numbers(sampled_run: RunFolder) -> None:
    page = read(sampled_run)
    assert page.headings()[:2] == ["learning", "samples"]
    assert "Prompt 1 · rows.jsonl, row 7, counted from 0 question 1" in page.words
    assert (
        "reward 1.000 · reward/short none · 7 tokens, EndToken evaluation 0 Wrote 2" in page.words
    )
    assert "reward/short none · advantage 0.1250 · 7 tokens" in page.words
    for step in (1, 10, 20):
        assert f"step {step} Wrote 3" in page.words


def test_without_a_script_the_ends_are_shown(sampled_run: RunFolder) -> None:
    elements = read(sampled_run).elements
    hidden = {
        (str(attributes["class"]), str(attributes["data-step"]))
        for _, attributes in elements
        if "hidden" in attributes and attributes.get("class") in ("answer", "prompt")
    }
    assert hidden == {("answer", "10"), ("prompt", "1"), ("prompt", "10")}


def test_texts_of_a_model_stay_texts(make_run: MakeRun) -> None:
    attack = (
        "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"
        "\x00\x1b[2J\u202edesrever\u2066\ud800\u2028"
    )
    clean = make_run(3)
    plain = a_sample(3, SampleKind.EVALUATION, prompt="q", response="r", scores={"s": 1.0})
    clean.write_samples([plain])
    tags = [tag for tag, _ in read(clean).elements]
    texts = {"prompt": attack, "response": attack, "row": attack}
    clean.write_samples([replace(plain, scores={attack: 1.0}, **texts)])
    page = read(clean)
    assert [tag for tag, _ in page.elements] == tags
    shown = attack.replace("\x00\x1b[2J\u202e", r"\x00\x1b[2J\u202e").replace(
        "\u2066\ud800\u2028", r"\u2066\ud800\u2028"
    )
    assert page.text.count(shown) == 2, "prompt and response"
    html = clean.report.read_text(encoding="utf-8")
    assert not {"\x00", "\x1b", "\u202e", "\u2066", "\u2028"} & set(html)


def test_a_conversation_is_shown_turn_by_turn(make_run: MakeRun) -> None:
    folder = make_run(3)
    folder.write_samples([a_sample(3, conversation=a_conversation(2, "</pre><script>\x1b"))])
    page = read(folder)
    shown = r"</pre><script>\x1b"
    turn = f"reward 0.5000 {shown} add(a=1) {shown} {shown} no add()"
    assert f"Turn 1 · {turn} Turn 2 · {turn} ToolDeadline: too slow" in page.words
    assert [tag for tag, _ in page.elements].count("script") == [
        tag for tag, _ in read(make_run(3)).elements
    ].count("script")


def test_a_long_run_shows_a_few_passes_with_the_first_and_the_last(make_run: MakeRun) -> None:
    folder = make_run(3)
    for step in range(1, 101):
        folder.write_samples(responses(SampleKind.STEP, step))
    steps = dict.fromkeys(
        int(str(attributes["data-step"]))
        for _, attributes in read(folder).elements
        if attributes.get("class") == "prompt"
    )
    assert list(steps) == [1, 15, 29, 43, 57, 71, 85, 100]
    assert len(steps) == MAX_PASSES


def test_the_page_is_of_bounded_size_whatever_is_written(make_run: MakeRun) -> None:
    folder = make_run(3)
    for step in range(MAX_PASSES + 1):
        for kind in SampleKind:
            texts = {
                "prompt": "\x01" * MAX_PROMPT_CHARACTERS,
                "response": "&" * MAX_RESPONSE_CHARACTERS,
            }
            folder.write_samples(
                [a_sample(step, kind, prompt_id=number, **texts) for number in range(16)]
            )
    assert write_report(folder).stat().st_size < 3_500_000


def test_the_number_of_characters_left_out_is_that_of_the_response(make_run: MakeRun) -> None:
    folder = make_run(3)
    response = "a" * 30_000 + "b" * 20_000
    stored = a_sample(3, response=shorten(response, MAX_RESPONSE_CHARACTERS))
    folder.write_samples([stored] * 160)
    limit = TEXT_BUDGET // (2 * 160)
    end = "b" * (limit // 3)
    begin = "a" * (limit - len(end))
    shown = f"{begin} [... {50_000 - limit} characters ...] {end}"
    assert read(folder).text.count(shown) == 160


class Tree(HTMLParser):
    """The elements of a page, for the stand-in of a browser."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.root: dict[str, Any] = self._element([])
        self._open = [self.root]
        self.feed(html)

    def _element(self, attributes: list[tuple[str, str | None]]) -> dict[str, Any]:
        values = dict(attributes)
        classes = (values.get("class") or "").split()
        return {"classes": classes, "attributes": values, "text": "", "children": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = self._element(attrs)
        self._open[-1]["children"].append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1]["text"] += data


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_searches_and_compares(sampled_run: RunFolder) -> None:
    script = files("rlhf_runtime.telemetry").joinpath("samples.js")
    actions = [
        ("right", "10"),  # compare 0 with 10
        ("left", "20"),  # the later one on the left
        ("query", "  WROTE 3 "),
        ("query", "evaluation 0"),  # its answers are not shown now
        ("query", "step 1 wrote"),
        ("query", ""),
        ("step", "10"),
    ]
    finished = subprocess.run(
        ["node", str(Path(__file__).with_name("samples_page.js")), str(script)],
        input=json.dumps({"tree": Tree(samples_section(sampled_run)).root, "actions": actions}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    result = json.loads(finished.stdout)
    shown = [
        [(article["asked"], article.get("step"), article["answers"]) for article in articles]
        for articles in result["seen"]
    ]

    def evaluated(*steps: int) -> list[tuple[str, str | None, list[int]]]:
        return [(f"question {number}", None, list(steps)) for number in range(2)]

    def trained(step: int) -> list[tuple[str, str | None, list[int]]]:
        return [(f"question {number}", str(step), []) for number in range(2)]

    assert shown == [
        evaluated(0, 20) + trained(20),
        evaluated(0, 10) + trained(20),
        evaluated(20, 10) + trained(20),
        [evaluated(20, 10)[1], trained(1)[1], trained(10)[1], trained(20)[1]],
        [],
        trained(1),
        evaluated(20, 10) + trained(20),
        evaluated(20, 10) + trained(10),
    ]
    assert result["count"] == "4 of 8 prompts"
