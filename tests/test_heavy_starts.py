"""Heavy starts are counted, need a mark, and fail a session that makes too many."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

import pytest

from . import heavy_starts
from .heavy_starts import Heavy, Starts, count_start, pop_starts
from .suites import ROOT, Spent, Suite, start_errors, starts_table

SUITE = Suite(PurePosixPath("tests/some"), seconds=10, starts={"world": 1})


@pytest.fixture(autouse=True)
def own_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the starts of these tests out of the session's."""
    monkeypatch.setattr(heavy_starts, "_UNREPORTED", Starts())


def test_starts_are_counted_until_they_are_popped() -> None:
    count_start(Heavy.ENGINE, 3)
    count_start(Heavy.WORLD)
    count_start(Heavy.WORLD, 0)
    count_start(Heavy.CONTROL_PLANE, shared=True)
    own, shared = Counter(engine=3, world=1), Counter({"control-plane": 1})
    starts = pop_starts()
    assert starts == Starts(own, shared)
    assert {type(kind) for kind in (*starts.own, *starts.shared)} == {str}
    assert pop_starts() == Starts()


def test_as_many_as_the_budget_allows_are_no_error() -> None:
    assert not list(start_errors({SUITE: Spent(starts=Starts(Counter(world=1)))}))


def test_more_or_others_than_the_budget_allows_are_errors() -> None:
    spent = {SUITE: Spent(starts=Starts(Counter(world=2, run=1)))}
    run, world = start_errors(spent)
    assert run.startswith("error: tests/some started 1 of run, allowed 0: share one with")
    assert world.startswith("error: tests/some started 2 of world, allowed 1: share one with")
    assert list(starts_table(spent))[1:] == ["tests/some: run 1 of 0, world 2 of 1"]


def test_those_for_several_suites_count_for_the_session() -> None:
    spent = {
        Suite(PurePosixPath(f"tests/{name}"), seconds=1): Spent(
            starts=Starts(shared=Counter({"control-plane": 1}))
        )
        for name in ("a", "b")
    }
    (error,) = start_errors(spent)
    assert error.startswith("error: the session started 2 of control-plane, allowed 1")


SESSION = """
import pytest
from tests.heavy_starts import Heavy, count_start

@pytest.fixture(scope="module")
def world():
    count_start(Heavy.WORLD, {number})

{mark}
def test_it(world): ...
"""


@pytest.mark.parametrize(
    ("mark", "number", "code", "message"),
    [
        ("", 1, 1, "started a heavy process (world) without the mark ray"),
        ("@pytest.mark.ray", 1, 0, "1 passed"),
        ("@pytest.mark.ray", 2, 1, "error: tests/some started 2 of world, allowed 1"),
    ],
    ids=["no-mark", "marked", "too-many"],
)
def test_a_session_fails_where_marks_or_numbers_are_wrong(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    mark: str,
    number: int,
    code: int,
    message: str,
) -> None:
    # The real plugin, in a session of its own with one suite.
    pytester.makeini("[pytest]\nmarkers = ray\nconsider_namespace_packages = true")
    pytester.makeconftest(
        "from pathlib import PurePosixPath\n"
        "from tests import suites\n"
        "SUITE = suites.Suite(PurePosixPath('tests/some'), 10, 'ray', {'world': 1})\n"
        "suites.suite_of = lambda nodeid: SUITE\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(suites.SuiteBudgets(False))\n"
    )
    pytester.makepyfile(SESSION.format(mark=mark, number=number))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == code, result.outlines
    assert message in result.stdout.str()
