"""The report is one whole page, whatever became of the run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rlhf_runtime.telemetry.errors import NotARun
from rlhf_runtime.telemetry.records import EvaluationRecord, Outcome, Span, UnscoredRecord
from rlhf_runtime.telemetry.report import write_report
from rlhf_runtime.telemetry.run_folder import RunFolder

from .conftest import MakeRun, MakeStep, a_run

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Reads a page strictly: every element that opens must close, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data: list[dict[str, object]] = []
        self._json = False
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._json = ("type", "application/json") in attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self._json:
            self.data = json.loads(data)
            self._json = False
        elif self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def headings(self) -> list[str]:
        return [str(attrs["id"]) for tag, attrs in self.elements if tag == "section"]


def read(folder: RunFolder) -> Page:
    html = write_report(folder).read_text(encoding="utf-8")
    for picture in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ElementTree.fromstring(picture)
    return Page(html)


def test_the_page_is_whole_and_loads_nothing(make_run: MakeRun) -> None:
    folder = make_run(40)
    folder.write_manifest("kind: RLHFJob  # </script><b>\n")
    page = read(folder)
    for tag, attrs in page.elements:
        assert tag not in ("link", "img", "iframe", "base"), tag
        assert not attrs.keys() & {"src", "srcset", "onclick", "onload"}, attrs
        if "href" in attrs:
            assert str(attrs["href"]).startswith("#")
    html = folder.report.read_text(encoding="utf-8")
    assert "http:" not in html and "https:" not in html
    assert "url(" not in html and "@import" not in html
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert "kind: RLHFJob # </script><b>" in page.words


def test_every_link_of_the_contents_leads_somewhere(make_run: MakeRun) -> None:
    page = read(make_run(5))
    ids = {attrs["id"] for _, attrs in page.elements if "id" in attrs}
    links = [str(attrs["href"])[1:] for tag, attrs in page.elements if tag == "a"]
    assert set(links) <= ids
    assert page.headings() == ["learning", "time", "timeline", "memory", "startup", "repeat"]


def test_the_headline_says_how_it_went(make_run: MakeRun) -> None:
    words = read(make_run(10)).words
    assert words.startswith("sort-grpo – run report")
    assert "succeeded GRPO sort-grpo" in words
    assert "Exact match 0.250 → 0.875" in words
    assert "Reward 0.010 → 0.100" in words
    assert "Steps 10 of 10" in words
    assert "rlhf run job.yaml" in words


def test_curves_carry_every_recorded_point(make_run: MakeRun) -> None:
    page = read(make_run(25))
    by_name = {chart["s"][0]["n"]: chart for chart in page.data if "s" in chart}  # type: ignore[index]
    assert by_name["reward/mean"]["s"][0]["x"] == list(range(1, 26))  # type: ignore[index]
    assert by_name["evaluation/exact_match"]["s"][0]["y"] == [0.25, 0.875]  # type: ignore[index]
    assert by_name["time/step"]["s"][0]["y"] == [0.5] * 25  # type: ignore[index]
    assert by_name["throughput/tokens_per_second"]["s"][0]["y"] == [2000.0] * 25  # type: ignore[index]
    assert "score/invalid" not in by_name
    assert "score/invalid 0" in page.words


def test_every_figure_has_its_data(make_run: MakeRun) -> None:
    page = read(make_run(5))
    figures = [attrs for tag, attrs in page.elements if tag == "figure"]
    assert len(figures) == len(page.data)
    assert all(attrs["aria-label"] and attrs["role"] == "img" for attrs in figures)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (None, "This run has not ended: 4 of 4 steps are recorded"),
        (Outcome.FAILED, "This run failed after step 4. OutOfMemory: rank 1 <ran> out"),
        (Outcome.INTERRUPTED, "This run was interrupted after step 4."),
    ],
)
def test_a_run_that_did_not_succeed_says_so(
    make_run: MakeRun, outcome: Outcome | None, said: str
) -> None:
    assert said in read(make_run(4, outcome)).words


def test_a_run_of_one_step_is_drawn(make_run: MakeRun) -> None:
    page = read(make_run(1))
    assert "Steps 1 of 1" in page.words
    assert any(attrs.get("class") == "dots k0" for _, attrs in page.elements)


def test_a_run_that_only_started_is_reported(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.append(a_run(tmp_path))
    page = read(folder)
    assert "No training step has finished yet." in page.words
    assert "not ended" in page.words


def test_values_that_are_not_finite_are_named(tmp_path: Path, make_step: MakeStep) -> None:
    with RunFolder(tmp_path) as folder:
        folder.append(a_run(tmp_path))
        for step in range(1, 50):
            value = math.nan if step % 9 == 0 else 1.0 / step
            metrics = {"reward/mean": value, "actor/loss": math.inf, "mine/x": math.nan}
            folder.append(make_step(step, metrics=metrics))
        folder.append(EvaluationRecord(49, {"evaluation/exact_match": math.nan}))
    words = read(folder).words
    assert "reward/mean (5×)" in words
    assert "actor/loss (49×)" in words


def test_missing_metrics_spans_and_memory_are_left_out(tmp_path: Path, make_step: MakeStep) -> None:
    with RunFolder(tmp_path) as folder:
        folder.append(make_step(3, metrics={}, phases={}, spans=(), memory={}, tokens=0))
    page = read(folder)
    assert "unnamed run" in page.words
    assert page.headings() == ["learning", "time"]


def test_a_long_run_with_many_ranks_stays_small(tmp_path: Path, make_step: MakeStep) -> None:
    names = [f"mine/metric_{index}" for index in range(30)]
    with RunFolder(tmp_path) as folder:
        folder.append(a_run(tmp_path, 20_000))
        for step in range(1, 20_001):
            metrics = {name: math.sin(step * 0.01) + step % 13 for name in names}
            spans: tuple[Span, ...] = ()
            if step in (1, 20_000):
                spans = tuple(
                    Span(f"rank {rank}", "actor", f"call_{n % 20}", step + n, step + n + 0.9)
                    for rank in range(64)
                    for n in range(40)
                )
            folder.append(make_step(step, metrics=metrics, spans=spans))
    path = write_report(folder)
    assert path.stat().st_size < 2_000_000
    page = Page(path.read_text(encoding="utf-8"))
    drawn = [chart for chart in page.data if "s" in chart]
    assert len(drawn) >= 30


def test_the_page_is_replaced_as_a_whole(make_run: MakeRun) -> None:
    folder = make_run(2)
    first = write_report(folder).read_text(encoding="utf-8")
    assert write_report(folder).read_text(encoding="utf-8") == first
    assert [path.name for path in folder.path.glob("report*")] == ["report.html"]


def test_a_folder_without_a_run_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        write_report(RunFolder(tmp_path))


def test_rows_that_verifiers_could_not_score_are_listed_once(make_run: MakeRun) -> None:
    folder = make_run(2)
    detail = "Traceback\nKeyError: <b>"
    failed = UnscoredRecord(1, "exact", "raised", "the 'x'", "/data/a.jsonl, line 7", detail)
    for record in (failed, failed, replace(failed, row="/data/a.jsonl, line 9")):
        folder.append(record)
    folder.close()
    write_report(folder)
    page = folder.report.read_text()
    assert page.count("/data/a.jsonl, line 7") == 1 and page.count("/data/a.jsonl, line 9") == 1
    assert "KeyError: &lt;b&gt;" in page and "Traceback" not in page
