"""Two processes that share a session's tests: tests that wait run beside tests that compute.

pytest-xdist starts the processes and collects their reports. This module assigns tests by the
workers of suites, shows progress, and cleans up after an interrupted session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from xdist.scheduler import LoadScheduling
from xdist.workermanage import WorkerController

from .suites import WORKERS, Suite, suite_of, workers_of

# A process begins a test when it knows the next one: fixtures end by it.
AHEAD = 2
"""Tests that are sent to a process ahead."""
QUICK_PROCESSES = 2
END_SECONDS = 120.0
"""Limit of the time in which fixtures of an interrupted process end."""


def num_processes(config: pytest.Config) -> int:
    """Number of workers of the selected suites, if there are several; two for quick tests."""
    # A few tests run in one process, in order, with output and debugger.
    if config.option.capture == "no":
        return 0
    if config.option.quick:
        return QUICK_PROCESSES
    workers = workers_of(config.args, config.invocation_params.dir)
    return len(workers) if len(workers) > 1 else 0


class SuiteScheduling(LoadScheduling):
    """Gives a process the tests of its own worker, in order; then tests without a worker.

    The latter by files, so that fixtures start once, and the longest suites first.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._numbers: dict[WorkerController, int] = {}
        self._suites: list[Suite] = []
        """Suites of the collected tests."""
        self._present: list[str] = []
        """Workers with collected tests."""
        self._begun: dict[str, int] = {}
        """Number of the process that began a file."""

    def add_node(self, node: WorkerController) -> None:
        super().add_node(node)
        used = self._numbers.values()
        self._numbers[node] = min(set(range(len(used) + 1)) - set(used))

    def remove_node(self, node: WorkerController) -> str | None:
        del self._numbers[node]  # its replacement gets its number, and so its tests
        return super().remove_node(node)

    def schedule(self) -> None:
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = next(iter(self.node2collection.values()))
            self._suites = [suite_of(nodeid) for nodeid in self.collection]
            present = {suite.worker for suite in self._suites}
            self._present = [worker for worker in WORKERS if worker in present]
            self.pending[:] = sorted(range(len(self.collection)), key=self._turn)
        for node in self.nodes:
            self.check_schedule(node)

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:
        if node.shutting_down:
            return
        while len(self.node2pending[node]) < AHEAD:
            test = self._next(node)
            if test is None:
                node.shutdown()  # after its pending tests
                return
            self.pending.remove(test)
            self.node2pending[node].append(test)
            node.send_runtest_some([test])

    def _turn(self, test: int) -> tuple[bool, float]:
        """Sort key of pending tests: those of workers, then the longest suites."""
        suite = self._suites[test]
        return (True, -suite.seconds) if suite.worker is None else (False, 0.0)

    def _next(self, node: WorkerController) -> int | None:
        """First test of the process's own worker, else the first without a worker."""
        assert self.collection is not None
        number = self._numbers[node]
        own = self._present[number % self.numnodes :: self.numnodes]
        for test in self.pending:
            if self._suites[test].worker in own:
                return test
        for test in self.pending:
            if self._suites[test].worker is None:
                file = file_of(self.collection[test])
                if self._begun.setdefault(file, number) == number:
                    return test
        return None


class SideBySide:
    """Hooks of a session with several processes, in the one that shows results."""

    def __init__(self, config: pytest.Config) -> None:
        terminal = config.pluginmanager.getplugin("terminalreporter")
        self._files = FileLines(terminal) if terminal and config.get_verbosity() == 0 else None
        self._nodes: list[WorkerController] = []

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScheduling | None:
        return SuiteScheduling(config, log) if config.option.dist == "load" else None

    def pytest_testnodeready(self, node: WorkerController) -> None:
        self._nodes.append(node)

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self._files and not self._files.tests:
            self._files.tests = Counter(map(file_of, ids))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, tuple[str, Any, Any]]:
        # No letter per test: letters of several files would be mixed.
        category, letter, word = yield
        return (category, "" if self._files else letter, word)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._files:
            self._files.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Let fixtures of all processes end, also after Ctrl-C."""
        for node in self._nodes:
            node.shutdown()
        for node in self._nodes:
            with suppress(EOFError, node.channel.TimeoutError, node.channel.RemoteError):
                node.channel.waitclose(END_SECONDS)


@dataclass
class FileLines:
    """Prints a line per failed test at once, and a line per finished file."""

    terminal: pytest.TerminalReporter
    tests: Counter[str] = field(default_factory=Counter)
    """Numbers of tests by file."""
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)

    def add(self, report: pytest.TestReport) -> None:
        """Record the report of one phase of a test."""
        file = file_of(report.nodeid)
        self.seconds[file] += report.duration  # type: ignore[assignment]
        if report.when == "call" or not report.passed:
            self.outcomes.setdefault(file, Counter())[report.outcome] += 1
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = f": {crash.message.splitlines()[0]}" if crash and crash.message else ""
            self.terminal.write_line(f"FAILED {report.nodeid} ({report.when}){why}", red=True)
        if report.when not in ("setup", "call"):  # also where a process has crashed
            self.ended[file] += 1
            if self.ended[file] == self.tests[file]:
                self.terminal.write_line(self._line(file))

    def _line(self, file: str) -> str:
        share = 100 * self.ended.total() // self.tests.total()
        outcomes = self.outcomes.get(file, Counter())
        counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
        return f"[{share:3}%] {self.seconds[file]:6.1f} s  {file}: {counts}"


def file_of(nodeid: str) -> str:
    """File of a test."""
    return nodeid.partition("::")[0]
