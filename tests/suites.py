"""Suites of tests: the folders and files that `[tool.suites]` in pyproject.toml names.

A suite has a budget of seconds, and one of heavy starts. Suites with a worker share its fixtures:
the control plane of a session (`cluster`), or Ray and a fork server (`ray`).
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from .heavy_starts import Starts, check_mark, excesses, pop_starts

ROOT = Path(__file__).resolve().parents[1]
WORKERS = ("ray", "cluster")
"""Workers: tests of one run in one process, and in order."""


@dataclass(frozen=True)
class Suite:
    """Tests below a path, with budgets and worker."""

    path: PurePosixPath
    seconds: float
    """Budget of seconds for all tests, on two idle cores, beside the other worker's."""
    worker: str | None = None
    """Process that runs the suite. None: any idle process runs its files."""
    starts: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Limits of heavy starts, by kind."""

    def contains(self, path: PurePosixPath) -> bool:
        """True if a file or folder is at or below the suite's path."""
        return path == self.path or self.path in path.parents


def _tables() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tables: dict[str, Any] = tomllib.loads(text)["tool"]
    return tables


@cache
def suites() -> tuple[Suite, ...]:
    """All suites; a suite within another one comes first."""
    table = _tables()["suites"]
    unsorted = [Suite(PurePosixPath(path), **settings) for path, settings in table.items()]
    return tuple(sorted(unsorted, key=lambda suite: -len(suite.path.parts)))


@cache
def shared_starts() -> Mapping[str, int]:
    """Limits of a session's heavy starts that serve several suites, by kind."""
    starts: dict[str, int] = _tables()["shared-starts"]
    return starts


def suite_of(nodeid: str) -> Suite:
    """Suite of a test, a file or a folder."""
    path = PurePosixPath(nodeid.partition("::")[0])
    for suite in suites():
        if suite.contains(path):
            return suite
    raise pytest.UsageError(f"{path}: of no suite: name it in pyproject.toml, [tool.suites]")


def workers_of(arguments: Iterable[str], folder: Path) -> set[str]:
    """Workers of suites at or below pytest's arguments, which are relative to `folder`."""
    workers = set()
    for argument in arguments:
        absolute = (folder / argument.partition("::")[0]).resolve()
        path = PurePosixPath(os.path.relpath(absolute, ROOT))
        for suite in suites():
            if path == PurePosixPath(".") or path in suite.path.parents or suite.contains(path):
                workers.add(suite.worker)
                if suite.contains(path):
                    break
    return {worker for worker in workers if worker}


def check_marks(items: Sequence[pytest.Item]) -> None:
    """Refuse tests marked cluster whose suite has another worker."""
    # Only one process has the control plane.
    for item in items:
        if item.get_closest_marker("cluster") and suite_of(item.nodeid).worker != "cluster":
            raise pytest.UsageError(
                f"{item.nodeid}: marked cluster, but the worker of its suite is not cluster: "
                "change it in pyproject.toml, [tool.suites]"
            )


@dataclass
class Spent:
    """Consumption of tests."""

    tests: int = 0
    wall: float = 0.0
    """Seconds."""
    cpu: float = 0.0
    """Seconds of the process that runs them, and of its ended children."""
    starts: Starts = field(default_factory=Starts)


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class SuiteBudgets:
    """A plugin that sums seconds and heavy starts by suite, prints and checks them."""

    def __init__(self, in_ci: bool, is_nightly: bool = False) -> None:
        self._in_ci = in_ci
        self._is_nightly = is_nightly  # nightly sessions start more than budgets allow
        self._spent: dict[Suite, Spent] = {}
        self._cpu = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, pytest.TestReport]:
        """Add CPU time and heavy starts since the last report, in the process that runs tests."""
        report: pytest.TestReport = yield
        before, self._cpu = self._cpu, cpu_seconds()
        vars(report)["cpu_seconds"] = self._cpu - before
        starts = pop_starts()  # a report travels between processes: plain types only
        vars(report)["own_starts"] = dict(starts.own)
        vars(report)["shared_starts"] = dict(starts.shared)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        check_mark(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        check_mark(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = self._spent.setdefault(suite_of(report.nodeid), Spent())
        spent.tests += report.when == "teardown"
        spent.wall += report.duration
        spent.cpu += getattr(report, "cpu_seconds", 0.0)  # a crash is reported without
        spent.starts.own.update(getattr(report, "own_starts", {}))
        spent.starts.shared.update(getattr(report, "shared_starts", {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(self._start_errors()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._spent) > 1:
            terminalreporter.section("time and heavy starts of each suite")
            for line in (*table(self._spent), *starts_table(self._spent)):
                terminalreporter.write_line(line)
        for line in warnings(self._spent) if self._in_ci else ():
            terminalreporter.write_line(line, yellow=True)
        for line in self._start_errors():
            terminalreporter.write_line(line, red=True)

    def _start_errors(self) -> Iterator[str]:
        return iter(()) if self._is_nightly else start_errors(self._spent)


def table(spent: dict[Suite, Spent]) -> Iterator[str]:
    """Yield a line per suite, the longest first, and one for all."""
    yield f"{'tests':>6} {'seconds':>8} {'of CPUs':>8} {'budget':>8}  suite"
    rows = sorted(spent.items(), key=lambda row: -row[1].wall)
    for suite, sums in rows:
        yield f"{sums.tests:6} {sums.wall:8.0f} {sums.cpu:8.0f} {suite.seconds:8.0f}  {suite.path}"
    tests, wall, cpu = (
        sum(getattr(sums, name) for sums in spent.values()) for name in ("tests", "wall", "cpu")
    )
    budget = sum(suite.seconds for suite in spent)
    yield f"{tests:6} {wall:8.0f} {cpu:8.0f} {budget:8.0f}  all, of two workers at once"


def warnings(spent: dict[Suite, Spent]) -> Iterator[str]:
    """Yield a line per suite that exceeds its budget of seconds."""
    for suite, sums in spent.items():
        if sums.wall > suite.seconds:
            yield (
                f"warning: {suite.path} took {sums.wall:.0f} s, allowed {suite.seconds:.0f} s:"
                " make it faster, or change the budget in pyproject.toml, [tool.suites]"
            )


def starts_table(spent: dict[Suite, Spent]) -> Iterator[str]:
    """Yield a line per suite with heavy starts: kinds, numbers and budgets."""
    yield ""
    for suite, sums in spent.items():
        if sums.starts.own:
            yield f"{suite.path}: {_numbers(sums.starts.own, suite.starts)}"
    shared = _shared(spent)
    if shared:
        yield f"for several suites: {_numbers(shared, shared_starts())}"


def _numbers(starts: Mapping[str, int], budget: Mapping[str, int]) -> str:
    return ", ".join(
        f"{kind} {number} of {budget.get(kind, 0)}" for kind, number in sorted(starts.items())
    )


def start_errors(spent: dict[Suite, Spent]) -> Iterator[str]:
    """Yield a line per kind that a suite, or the session, started too often."""
    for suite, sums in spent.items():
        yield from excesses(str(suite.path), sums.starts.own, suite.starts)
    yield from excesses("the session", _shared(spent), shared_starts())


def _shared(spent: dict[Suite, Spent]) -> Counter[str]:
    total: Counter[str] = Counter()
    for sums in spent.values():
        total.update(sums.starts.shared)
    return total
