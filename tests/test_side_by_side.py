"""Two processes share a session: tests of their own worker, and those without a worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from xdist.workermanage import WorkerController

from .side_by_side import AHEAD, FileLines, SideBySide, SuiteScheduling, num_processes
from .suites import ROOT

pytestmark = pytest.mark.slow

RAY = [f"tests/runs/test_a.py::test_{i}" for i in range(4)]
CLUSTER = [f"tests/charts/test_b.py::test_{i}" for i in range(4)]
OTHER = [f"tests/tools/test_{file}.py::test_{i}" for file in "cde" for i in range(2)]
ALL = [*CLUSTER, *RAY, *OTHER]


class Node:
    """A fake process of tests."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduling(num_nodes: int, tests: list[str] = ALL) -> tuple[SuiteScheduling, list[Node]]:
    """Scheduler of a session whose processes have collected tests, and started."""
    option = SimpleNamespace(tx=["popen"] * num_nodes, maxschedchunk=None)
    config = SimpleNamespace(
        option=option,
        getvalue=lambda name: getattr(option, name),
        getoption=lambda name: getattr(option, name),
    )
    scheduler = SuiteScheduling(cast(pytest.Config, config))
    nodes = [Node(f"gw{i}") for i in range(num_nodes)]
    for node in nodes:
        join(scheduler, node, tests)
    scheduler.schedule()
    return scheduler, nodes


def join(scheduler: SuiteScheduling, node: Node, tests: list[str]) -> None:
    scheduler.add_node(controller(node))
    scheduler.add_node_collection(controller(node), tests)


def controller(node: Node) -> WorkerController:
    return cast(WorkerController, node)


def work(scheduler: SuiteScheduling, node: Node, done: list[str], limit: int = 1000) -> None:
    """Let a process run its pending tests."""
    # The last one only after `shutdown`, when no other follows.
    for _ in range(limit):
        pending = scheduler.node2pending[controller(node)]
        if len(pending) < (1 if node.shutting_down else AHEAD):
            return
        done.append(ALL[pending[0]])
        scheduler.mark_test_complete(controller(node), pending[0])


def work_once(scheduler: SuiteScheduling, node: Node, tests: list[str], done: list[str]) -> None:
    """Let a process finish its first pending test."""
    if pending := scheduler.node2pending[controller(node)]:
        done.append(tests[pending[0]])
        scheduler.mark_test_complete(controller(node), pending[0])


def test_a_process_runs_tests_of_its_worker_in_order_before_those_without_one() -> None:
    scheduler, (ray, cluster) = scheduling(2)
    of_ray: list[str] = []
    of_cluster: list[str] = []
    work(scheduler, cluster, of_cluster, limit=5)
    work(scheduler, ray, of_ray)
    work(scheduler, cluster, of_cluster)
    assert of_ray[:4] == RAY and of_cluster[:4] == CLUSTER
    assert sorted(of_ray[4:] + of_cluster[4:]) == OTHER and of_cluster[4:] == OTHER[:4]
    assert scheduler.tests_finished and ray.shutting_down and cluster.shutting_down


def test_a_file_without_a_worker_is_run_by_one_process_so_that_fixtures_start_once() -> None:
    scheduler, nodes = scheduling(2, OTHER)
    done: dict[str, list[str]] = {node.gateway.id: [] for node in nodes}
    while not scheduler.tests_finished:
        for node in nodes:
            work_once(scheduler, node, OTHER, done[node.gateway.id])
    files = [{nodeid.partition("::")[0] for nodeid in ran} for ran in done.values()]
    assert not files[0] & files[1] and all(files)


def test_the_longest_suites_without_a_worker_start_first() -> None:
    short, long = "tests/images/test_a.py::test_it", "tests/rlhf_flow/test_lint.py::test_it"
    scheduler, (only,) = scheduling(1, [short, long])
    assert only.sent == [1, 0]


def test_a_process_is_sent_only_the_next_test_so_that_a_failure_can_end_the_session() -> None:
    scheduler, (ray, _) = scheduling(2)
    assert len(ray.sent) == AHEAD
    ray.shutdown()
    work(scheduler, ray, [])
    assert len(ray.sent) == AHEAD


def test_the_tests_of_one_worker_never_run_in_the_other() -> None:
    scheduler, (ray, cluster) = scheduling(2, [*RAY, *CLUSTER])
    while not cluster.shutting_down:
        scheduler.mark_test_complete(
            controller(cluster), scheduler.node2pending[controller(cluster)][0]
        )
    assert set(cluster.sent) == {4, 5, 6, 7}
    assert set(ray.sent) <= {0, 1, 2, 3} and not ray.shutting_down


def test_the_replacement_of_a_crashed_process_runs_its_tests() -> None:
    scheduler, (ray, cluster) = scheduling(2)
    assert scheduler.remove_node(controller(cluster)) == CLUSTER[0]
    assert set(ray.sent) == {4, 5}
    another = Node("gw2")
    join(scheduler, another, ALL)
    scheduler.schedule()
    done: list[str] = []
    work(scheduler, another, done)
    assert sorted(done[:3]) == CLUSTER[1:] and not set(done) & set(RAY)


def test_one_process_runs_everything() -> None:
    scheduler, (only,) = scheduling(1)
    done: list[str] = []
    work(scheduler, only, done)
    assert sorted(done) == sorted(ALL) and set(done[8:]) == set(OTHER)


def test_processes_that_collected_different_tests_run_nothing() -> None:
    reports: list[Any] = []
    hook = SimpleNamespace(pytest_collectreport=lambda report: reports.append(report))
    scheduler, (first, second) = scheduling(2, [])
    scheduler.collection = None
    scheduler.config = cast(pytest.Config, SimpleNamespace(hook=hook))
    scheduler.node2collection = {controller(first): RAY, controller(second): RAY[1:]}
    scheduler.schedule()
    assert reports[0].outcome == "failed" and not first.sent and not second.sent


def test_a_file_gets_a_line_after_its_last_test_and_failures_one_at_once() -> None:
    lines: list[str] = []
    terminal = SimpleNamespace(write_line=lambda line, **_: lines.append(line))
    files = FileLines(cast(pytest.TerminalReporter, terminal))
    files.tests.update({"tests/a.py": 2, "tests/b.py": 2})
    for nodeid, outcome in {"tests/a.py::x": "passed", "tests/b.py::y": "failed"}.items():
        for when in ("setup", "call", "teardown"):
            files.add(report(nodeid, when, outcome if when == "call" else "passed"))
    assert lines == ["FAILED tests/b.py::y (call): assert 1 == 2"]
    for when in ("setup", "teardown"):
        files.add(report("tests/a.py::z", when, "skipped" if when == "setup" else "passed"))
    assert lines[1:] == ["[ 75%]    5.0 s  tests/a.py: 1 passed, 1 skipped"]
    files.add(report("tests/b.py::w", "???", "failed"))  # as a crash is reported
    assert lines[2:] == [
        "FAILED tests/b.py::w (???)",
        "[100%]    4.0 s  tests/b.py: 2 failed",
    ]


def report(nodeid: str, when: str, outcome: str) -> Any:
    """Report of one phase of a test, of a second."""
    crash = SimpleNamespace(message="assert 1 == 2\n  where 1 = f()") if when == "call" else None
    return SimpleNamespace(
        nodeid=nodeid,
        when=when,
        outcome=outcome,
        passed=outcome == "passed",
        failed=outcome == "failed",
        longrepr=SimpleNamespace(reprcrash=crash),
        duration=1.0,
    )


def test_the_end_of_a_session_waits_for_the_fixtures_of_its_processes() -> None:
    shutdowns: list[str] = []

    def waitclose(seconds: float) -> None:
        assert shutdowns == ["shutdown", "shutdown"] and seconds >= 60
        waited.append(seconds)
        raise EOFError("it has ended")

    waited: list[float] = []
    channel = SimpleNamespace(waitclose=waitclose, TimeoutError=OSError, RemoteError=RuntimeError)
    node = SimpleNamespace(channel=channel, shutdown=lambda: shutdowns.append("shutdown"))
    config = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda name: None))
    hooks = SideBySide(cast(pytest.Config, config))
    for _ in range(2):
        hooks.pytest_testnodeready(cast(WorkerController, node))
    hooks.pytest_sessionfinish()
    assert len(waited) == 2


FEW = [
    "tests/rlhf_runtime/controller/test_training_passes.py",
    "tests/rlhf_operator/test_bounds.py",
]


def pytest_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a session of its own, as `make test` does."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "auto", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=own,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_tests_of_both_workers_run_in_two_processes_and_are_summed_up() -> None:
    done = pytest_of(*FEW)
    assert done.returncode == 0, done.stdout
    assert "2/2 workers" in done.stdout
    for file in FEW:
        assert re.search(rf"s  {file}: \d+ passed$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^ +\d+ +\d+ +\d+ +\d+  tests/rlhf_operator$", done.stdout, re.MULTILINE)
    assert re.search(r"^=+ \d+ passed in .+s.* =+$", done.stdout.splitlines()[-1])


def test_a_debugged_session_runs_in_one_process() -> None:
    done = pytest_of(*FEW, "--pdb")
    assert done.returncode == 0, done.stdout
    assert "workers [" not in done.stdout and f"{FEW[0]} ....." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "capture", "expected"),
    [(FEW, "fd", 2), (FEW, "no", 0), (FEW[:1], "fd", 0), (["tests"], "fd", 2)],
)
def test_a_few_tests_and_output_as_it_comes_need_one_process(
    arguments: list[str], capture: str, expected: int
) -> None:
    config = SimpleNamespace(
        args=arguments,
        option=SimpleNamespace(capture=capture, quick=False),
        invocation_params=SimpleNamespace(dir=ROOT),
    )
    assert num_processes(cast(pytest.Config, config)) == expected
