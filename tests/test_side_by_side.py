"""Two processes share a session: each has its own tests, and both the others."""

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
    """A process of tests that does what it is told when the test says so."""

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
    """A session whose processes have said what they found, and begun."""
    option = SimpleNamespace(tx=["popen"] * num_nodes, maxschedchunk=None)
    config = SimpleNamespace(
        option=option,
        getvalue=lambda name: getattr(option, name),
        getoption=lambda name: getattr(option, name),
    )
    made = SuiteScheduling(cast(pytest.Config, config))
    nodes = [Node(f"gw{i}") for i in range(num_nodes)]
    for node in nodes:
        join(made, node, tests)
    made.schedule()
    return made, nodes


def join(made: SuiteScheduling, node: Node, tests: list[str]) -> None:
    made.add_node(controller(node))
    made.add_node_collection(controller(node), tests)


def controller(node: Node) -> WorkerController:
    return cast(WorkerController, node)


def work(made: SuiteScheduling, node: Node, done: list[str], most: int = 1000) -> None:
    """Let a process run what it is sent: the last one only when it knows that no other follows."""
    for _ in range(most):
        pending = made.node2pending[controller(node)]
        if len(pending) < (1 if node.shutting_down else AHEAD):
            return
        done.append(ALL[pending[0]])
        made.mark_test_complete(controller(node), pending[0])


def work_once(made: SuiteScheduling, node: Node, tests: list[str], done: list[str]) -> None:
    """Let a process end the first of the tests that it was sent."""
    if pending := made.node2pending[controller(node)]:
        done.append(tests[pending[0]])
        made.mark_test_complete(controller(node), pending[0])


def test_each_process_runs_its_own_tests_in_order_before_those_of_nobody() -> None:
    made, (ray, cluster) = scheduling(2)
    of_ray: list[str] = []
    of_cluster: list[str] = []
    work(made, cluster, of_cluster, most=5)
    work(made, ray, of_ray)
    work(made, cluster, of_cluster)
    assert of_ray[:4] == RAY and of_cluster[:4] == CLUSTER
    assert sorted(of_ray[4:] + of_cluster[4:]) == OTHER and of_cluster[4:] == OTHER[:4]
    assert made.tests_finished and ray.shutting_down and cluster.shutting_down


def test_a_file_of_nobody_is_run_by_one_process_as_its_fixtures_start_once() -> None:
    made, nodes = scheduling(2, OTHER)
    done: dict[str, list[str]] = {node.gateway.id: [] for node in nodes}
    while not made.tests_finished:
        for node in nodes:
            work_once(made, node, OTHER, done[node.gateway.id])
    files = [{nodeid.partition("::")[0] for nodeid in ran} for ran in done.values()]
    assert not files[0] & files[1] and all(files)


def test_the_longest_suites_of_nobody_are_begun_first() -> None:
    short, long = "tests/images/test_a.py::test_it", "tests/rlhf_flow/test_lint.py::test_it"
    made, (only,) = scheduling(1, [short, long])
    assert only.sent == [1, 0]


def test_a_process_is_sent_only_the_next_test_so_that_a_failure_can_end_the_session() -> None:
    made, (ray, _) = scheduling(2)
    assert len(ray.sent) == AHEAD
    ray.shutdown()
    work(made, ray, [])
    assert len(ray.sent) == AHEAD


def test_the_tests_of_one_worker_are_never_given_to_the_other() -> None:
    made, (ray, cluster) = scheduling(2, [*RAY, *CLUSTER])
    while not cluster.shutting_down:
        made.mark_test_complete(controller(cluster), made.node2pending[controller(cluster)][0])
    assert set(cluster.sent) == {4, 5, 6, 7}
    assert set(ray.sent) <= {0, 1, 2, 3} and not ray.shutting_down


def test_what_replaces_a_process_that_crashed_takes_its_tests() -> None:
    made, (ray, cluster) = scheduling(2)
    assert made.remove_node(controller(cluster)) == CLUSTER[0]
    assert set(ray.sent) == {4, 5}
    another = Node("gw2")
    join(made, another, ALL)
    made.schedule()
    done: list[str] = []
    work(made, another, done)
    assert sorted(done[:3]) == CLUSTER[1:] and not set(done) & set(RAY)


def test_one_process_runs_everything() -> None:
    made, (only,) = scheduling(1)
    done: list[str] = []
    work(made, only, done)
    assert sorted(done) == sorted(ALL) and set(done[8:]) == set(OTHER)


def test_processes_that_found_different_tests_run_nothing() -> None:
    reports: list[Any] = []
    hook = SimpleNamespace(pytest_collectreport=lambda report: reports.append(report))
    made, (first, second) = scheduling(2, [])
    made.collection = None
    made.config = cast(pytest.Config, SimpleNamespace(hook=hook))
    made.node2collection = {controller(first): RAY, controller(second): RAY[1:]}
    made.schedule()
    assert reports[0].outcome == "failed" and not first.sent and not second.sent


def test_a_line_for_each_file_comes_with_its_last_test_and_failures_at_once() -> None:
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
    """One phase of a test, which took a second."""
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
    told: list[str] = []

    def waitclose(seconds: float) -> None:
        assert told == ["shutdown", "shutdown"] and seconds >= 60
        waited.append(seconds)
        raise EOFError("it has ended")

    waited: list[float] = []
    channel = SimpleNamespace(waitclose=waitclose, TimeoutError=OSError, RemoteError=RuntimeError)
    node = SimpleNamespace(channel=channel, shutdown=lambda: told.append("shutdown"))
    config = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda name: None))
    hooks = SideBySide(cast(pytest.Config, config))
    for _ in range(2):
        hooks.pytest_testnodeready(cast(WorkerController, node))
    hooks.pytest_sessionfinish()
    assert len(waited) == 2


FEW = ["tests/rlhf_runtime/controller/test_passes.py", "tests/rlhf_operator/test_bounds.py"]


def pytest_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A session of its own, as `make test` begins it."""
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


def test_what_is_debugged_runs_in_one_process() -> None:
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
    told = SimpleNamespace(
        args=arguments,
        option=SimpleNamespace(capture=capture, quick=False),
        invocation_params=SimpleNamespace(dir=ROOT),
    )
    assert num_processes(cast(pytest.Config, told)) == expected
