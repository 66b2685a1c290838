"""Expected times beside measured ones, with spans whose sums a person sees."""

from __future__ import annotations

import pytest

from rlhf_api.plan import Plan
from rlhf_api.plan_estimate import CallEstimate, StepEstimate
from rlhf_cli.commands.report import report
from rlhf_runtime.telemetry.plan_section import (
    STEP,
    TimePair,
    time_pairs,
    times_table,
    times_text,
)
from rlhf_runtime.telemetry.records import ResumedRecord, Span
from rlhf_runtime.telemetry.report import write_report

from .conftest import MakeRun, a_run, a_step
from .test_plan_table import PLAN

SITES = {"actor.generate": 1.0, "actor.generate#2": 0.5, "every-10/actor.train": 0.1, "compute": 2}


def a_plan(seconds: dict[str, float], step_seconds: float = 2.0) -> Plan:
    """A plan of these calls."""
    (call,) = PLAN.calls
    calls = [
        call.model_copy(
            update={
                "call": site,
                "role": None if site == "compute" else "actor",
                "method": site.rpartition("/")[2].partition("#")[0].rpartition(".")[2],
                "expected_count": 0.1 if site.startswith("every") else 1.0,
            }
        )
        for site in seconds
    ]
    estimate = StepEstimate(
        hardware={"local": "CPU"},
        prompt_tokens=4,
        response_tokens=4,
        step_seconds=step_seconds,
        tokens_per_step=100,
        idle_share=0,
        calls=tuple(
            CallEstimate(call=site, seconds=each, bottleneck="compute")
            for site, each in seconds.items()
        ),
    )
    return PLAN.model_copy(update={"calls": tuple(calls), "estimate": estimate})


def spans(step: int, **seconds: float) -> list[Span]:
    """One call of the actor after the other on rank 0, and half as long on rank 1."""
    return [
        Span(f"rank {rank}", "actor", call, float(step), step + each / (1 + rank))
        for call, each in seconds.items()
        for rank in range(2)
    ]


def test_calls_of_a_name_are_added_up_and_the_median_of_steps_counts() -> None:
    measured = {
        1: [*spans(1, generate=9, train=0.5), *spans(1, generate=1)],
        2: [*spans(2, generate=1), *spans(2, generate=2)],
        3: [*spans(3, generate=2), *spans(3, generate=2)],
    }
    steps = [a_step(1, seconds=9.0), a_step(2, seconds=3.5), a_step(3, seconds=3.0)]
    assert time_pairs(a_plan(SITES), steps, measured) == (
        TimePair(STEP, 2.0, 3.5),
        TimePair("actor.generate", 1.5, 4.0),
        TimePair("actor.train", 0.1, 0.5),
    ), "a call that nobody measured is left out"


@pytest.mark.parametrize("in_every_step", [1.0, 0.1])
def test_calls_that_most_steps_do_not_have_count_only_without_others(in_every_step: float) -> None:
    plan = a_plan({"actor.infer": 1.0, "every-10/actor.infer": 4.0})
    first, second = plan.calls
    first = first.model_copy(update={"expected_count": in_every_step})
    steps = [a_step(step) for step in range(1, 11)]
    measured = {step: spans(step, infer=1) for step in range(1, 10)} | {10: spans(10, infer=5)}
    found = time_pairs(plan.model_copy(update={"calls": (first, second)}), steps, measured)
    assert found[1] == TimePair("actor.infer", 1.0 if in_every_step == 1 else 5.0, 1.0)


@pytest.mark.parametrize(
    ("expected", "measured", "is_wrong"),
    [(2, 3, False), (2, 3.01, True), (3, 2, False), (3, 1.99, True), (0, 1, True), (0, 0, False)],
)
def test_more_than_half_as_much_again_is_wrong(
    expected: float, measured: float, is_wrong: bool
) -> None:
    assert TimePair("actor.train", expected, measured).is_wrong is is_wrong


def test_what_was_wrong_is_told() -> None:
    plan = a_plan({"actor.generate": 1.0, "actor.train": 1.0})
    pairs = time_pairs(plan, [a_step(1, seconds=3.0)], {1: spans(1, generate=1.2, train=4.0)})
    text = times_text(plan, pairs)
    assert text.startswith("a step: expected 2.00 s, measured 3.00 s (1.50 times)")
    assert "actor.train: expected 1.00 s, measured 4.00 s (4.00 times)" in text
    assert "actor.generate" not in text and "orders of magnitude" in text
    html = times_table(plan, pairs)
    assert html.count("wrong") == 1 and "orders of magnitude" in html


def test_nothing_is_compared_without_an_estimate_or_a_step() -> None:
    assert time_pairs(PLAN, [a_step(1)], {1: spans(1, generate=1)}) == ()
    assert time_pairs(a_plan(SITES), [], {}) == ()
    assert times_table(PLAN, ()) == times_text(PLAN, ()) == ""


def test_reports_have_both(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(3)
    folder.write_plan(a_plan({"actor.generate": 0.2, "actor.train": 0.05}, step_seconds=0.1))
    html = write_report(folder).read_text(encoding="utf-8")
    assert 'id="expected"' in html and "3.00×" in html
    report(folder.path)
    told = capsys.readouterr().out
    assert "a step: expected 100 ms, measured 500 ms (5.00 times)" in told
    assert "actor.train: expected 50 ms, measured 150 ms (3.00 times)" in told


@pytest.mark.parametrize("again", [1, 3])
def test_only_steps_of_the_last_start_are_compared(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], again: int
) -> None:
    """Earlier ones took 500 ms and trained for 150 ms, maybe under another plan; they came to step
    20, and the last start went on from step 10."""
    folder = make_run(20, None)
    with folder:
        folder.write_plan(a_plan({"actor.train": 4.0}, step_seconds=2.0))
        folder.append(a_run(folder.path, 20))
        folder.append(ResumedRecord(10))
        report(folder.path)
        assert "expected" not in capsys.readouterr().out, "no step has run under this plan"
        for step in range(11, 11 + again):
            folder.append(a_step(step, seconds=2.0, spans=spans(step, train=4)))
    html = write_report(folder).read_text(encoding="utf-8")
    assert html.count("1.00×") == 2
    report(folder.path)
    told = capsys.readouterr().out
    assert "a step: expected 2.00 s, measured 2.00 s (1.00 times)" in told and "wrong" not in told
    records = folder.read()
    assert [step.step for step in records.last_start_steps] == [*range(11, 11 + again)]
    assert len(records.steps) == 20 and records.steps_repeated == again
