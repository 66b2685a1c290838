"""`--quick` leaves out heavy tests, `--nightly` adds tests, and both scale numbers of examples."""

from __future__ import annotations

from collections import Counter

import pytest

from .depth import FACTOR, sample
from .suites import ROOT

TESTS = """
import pytest
from hypothesis import settings
from tests.depth import examples

print("EXAMPLES", examples(50), settings().max_examples)

def test_light(): ...

@pytest.mark.ray
def test_with_ranks(): ...

@pytest.mark.cluster
def test_with_a_cluster(): ...

@pytest.mark.slow
def test_that_takes_long(): ...

@pytest.mark.nightly
def test_at_night(): ...

@pytest.mark.ray
@pytest.mark.nightly
def test_with_ranks_at_night(): ...
"""
CONFTEST = """
from tests.depth import add_options as pytest_addoption, choose_depth as pytest_configure, select

def pytest_collection_modifyitems(config, items):
    select(config, items)
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A session of its own with tests of every kind."""
    pytester.makeini("[pytest]\nmarkers =\n  ray\n  cluster\n  nightly\n  slow")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


@pytest.mark.parametrize(
    ("words", "passed", "deselected", "examples"),
    [([], 4, 2, "50 100"), (["--quick"], 1, 5, "10 20"), (["--nightly"], 6, 0, "500 1000")],
    ids=["usual", "quick", "nightly"],
)
def test_a_session_runs_what_its_depth_says(
    session: pytest.Pytester, words: list[str], passed: int, deselected: int, examples: str
) -> None:
    result = session.runpytest_subprocess("-s", *words)
    result.assert_outcomes(passed=passed, deselected=deselected)
    assert f"EXAMPLES {examples}" in result.stdout.str()


def test_two_depths_at_once_are_refused(session: pytest.Pytester) -> None:
    result = session.runpytest_subprocess("--quick", "--nightly")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "got --quick and --nightly, allowed one of them" in result.stderr.str()


@pytest.mark.parametrize(("columns", "usual"), [(5, 2), (3, 2), (10, 5), (7, 3), (3, 5)])
def test_a_sample_of_a_matrix_has_cells_of_every_row_and_column(
    monkeypatch: pytest.MonkeyPatch, columns: int, usual: int
) -> None:
    monkeypatch.setenv(FACTOR, "1")
    rows = [sample(row, range(columns), usual) for row in range(columns)]
    assert all(len(set(row)) == min(usual, columns) for row in rows)
    drawn = Counter(column for row in rows for column in row)
    assert set(drawn.values()) == {min(usual, columns)} and len(drawn) == columns


def test_all_cells_are_run_at_night(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FACTOR, "10")
    assert sample(3, "abcde", 2) == "abcde"
