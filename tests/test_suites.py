"""Suites: every test has one, and consumption is compared with budgets."""

from __future__ import annotations

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from .suites import ROOT, Spent, Suite, SuiteBudgets, suite_of, suites, table, warnings, workers_of

SLOW = Suite(PurePosixPath("tests/slow"), seconds=10, worker="ray")
QUICK = Suite(PurePosixPath("tests/quick"), seconds=5)


def test_every_file_of_tests_is_of_a_suite_and_every_suite_has_tests() -> None:
    files = [file.relative_to(ROOT).as_posix() for file in ROOT.glob("tests/**/test_*.py")]
    assert {suite_of(file) for file in files} == set(suites())


def test_a_file_without_a_suite_is_refused_with_advice() -> None:
    with pytest.raises(pytest.UsageError, match=r"tests/new/test_it.py: of no suite: name it in"):
        suite_of("tests/new/test_it.py::test_it")


def test_the_longest_path_of_a_suite_counts() -> None:
    assert suite_of("tests/repository/test_guides.py::test_a_guide_works[x]").worker == "cluster"
    assert suite_of("tests/repository/test_pins.py").worker is None


@pytest.mark.parametrize(
    ("arguments", "workers"),
    [
        (["tests"], {"ray", "cluster"}),
        (["."], {"ray", "cluster"}),
        ([str(ROOT)], {"ray", "cluster"}),
        (["tests/runs", "tests/charts/test_rights.py::test_it"], {"ray", "cluster"}),
        (["tests/repository"], {"cluster"}),
        (["tests/repository/test_guides.py"], {"cluster"}),
        (["tests/rlhf_operator/test_queue.py", "tests/cluster"], {"cluster"}),
        (["tests/runs/test_resume.py", "tests/rlhf_runtime"], {"ray"}),
        (["tests/rlhf_runtime/controller/test_training_passes.py"], {"ray"}),
        (["tests/rlhf_runtime/numerics"], set()),
        (["tests/rlhf_flow", "tests/tools/test_generate.py"], set()),
    ],
)
def test_arguments_determine_workers(arguments: list[str], workers: set[str]) -> None:
    assert workers_of(arguments, ROOT) == workers


def test_arguments_count_from_where_they_were_typed() -> None:
    assert workers_of(["../runs"], ROOT / "tests" / "charts") == {"ray"}


def test_the_table_has_the_longest_first_and_the_sum_last() -> None:
    spent = {QUICK: Spent(20, 1.0, 0.5), SLOW: Spent(3, 12.0, 4.0)}
    assert [line.split() for line in table(spent)][1:] == [
        ["3", "12", "4", "10", "tests/slow"],
        ["20", "1", "0", "5", "tests/quick"],
        ["23", "13", "4", "15", "all,", "of", "two", "workers", "at", "once"],
    ]


def test_only_suites_above_their_budget_get_a_warning() -> None:
    (line,) = warnings({QUICK: Spent(20, 4.9), SLOW: Spent(3, 10.6)})
    assert line.startswith("warning: tests/slow took 11 s, allowed 10 s: make it faster")


@pytest.mark.parametrize("in_ci", [True, False])
def test_times_of_all_phases_are_added_and_printed_at_the_end(in_ci: bool) -> None:
    times, terminal = SuiteBudgets(in_ci), Terminal()
    for nodeid, seconds in {
        "tests/tools/test_a.py::b": 500.0,
        "tests/images/test_c.py::d": 1.0,
    }.items():
        for when in ("setup", "call", "teardown"):
            times.pytest_runtest_logreport(report(nodeid, when, seconds))
    times.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    assert "1     1500        3" in terminal.lines[1] and "tests/tools" in terminal.lines[1]
    assert (
        any(line.startswith("warning: tests/tools took 1500 s") for line in terminal.lines) is in_ci
    )
    assert not any("warning: tests/images" in line for line in terminal.lines)


@pytest.mark.parametrize(("seconds", "num_lines"), [(1.0, 0), (500.0, 1)])
def test_one_suite_needs_no_table_but_is_warned_of(seconds: float, num_lines: int) -> None:
    times, terminal = SuiteBudgets(True), Terminal()
    times.pytest_runtest_logreport(report("tests/tools/test_a.py::b", "call", seconds))
    times.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    assert len(terminal.lines) == num_lines


@pytest.mark.parametrize("is_nightly", [False, True])
def test_at_night_more_may_be_started_than_in_every_change(is_nightly: bool) -> None:
    times, terminal = SuiteBudgets(False, is_nightly), Terminal()
    started = report("tests/tools/test_a.py::b", "call", 1.0)
    started.own_starts = {"run": 1}
    times.pytest_runtest_logreport(started)
    times.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    assert len(terminal.lines) == (0 if is_nightly else 1), terminal.lines


class Terminal:
    """Records written lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        assert title

    def write_line(self, line: str, **_: bool) -> None:
        self.lines.append(line)


def report(nodeid: str, when: str, seconds: float) -> Any:
    return SimpleNamespace(nodeid=nodeid, when=when, duration=seconds, cpu_seconds=1.0)
