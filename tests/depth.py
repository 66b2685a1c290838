"""Depth of a session's tests: at every save, in every change, or at night.

`--quick` leaves out what starts heavy processes or is slow, and draws fewer examples. `--nightly`
adds the tests marked nightly, and draws more.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

LEFT_OUT_BY_QUICK = ("ray", "cluster", "e2e", "gpu", "slow")
"""Marks of tests that start heavy processes or take long."""
NIGHTLY = "nightly"
DEFAULT_EXAMPLES = 100
"""Examples of a property without a number of its own."""

# A variable of the environment: processes that tests start must agree.
FACTOR = "RLHF_TEST_EXAMPLES_FACTOR"
"""Variable with the factor on numbers of examples."""

T = TypeVar("T")


def add_options(parser: pytest.Parser) -> None:
    """Add `--quick` and `--nightly` to pytest's command line."""
    group = parser.getgroup("depth")
    group.addoption(
        "--quick", action="store_true", help="only what starts nothing heavy and is not slow"
    )
    group.addoption("--nightly", action="store_true", help="also nightly tests, more examples")


def choose_depth(config: pytest.Config) -> None:
    """Set the number of examples."""
    if config.option.quick and config.option.nightly:
        raise pytest.UsageError("got --quick and --nightly, allowed one of them")
    os.environ[FACTOR] = "0.2" if config.option.quick else "10" if config.option.nightly else "1"
    from hypothesis import HealthCheck, settings  # ranks import this module, and not hypothesis

    settings.register_profile(
        "any machine",  # a busy machine is not a failure
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=examples(DEFAULT_EXAMPLES),
    )
    settings.load_profile("any machine")


def examples(usual: int) -> int:
    """Scale the number of examples of a usual session."""
    return max(1, round(usual * _factor()))


def sample(row: int, columns: Sequence[T], usual: int) -> Sequence[T]:
    """Choose the cells of a matrix's row that this session runs: all of them at night.

    Args:
        row: number of the row.
        columns: all columns of the matrix, in order.
        usual: number of cells in a row by day.
    """
    number = len(columns)
    if _factor() > 1 or usual >= number:
        return columns
    # Cells at equal distances, which shift from row to row: together the rows cover every column.
    chosen = {(row + cell * number // usual) % number for cell in range(usual)}
    return [column for index, column in enumerate(columns) if index in chosen]


def _factor() -> float:
    return float(os.environ.get(FACTOR, "1"))


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect nightly tests, and under `--quick` heavy and slow ones."""
    if config.option.nightly:
        return
    out_of = (NIGHTLY, *(LEFT_OUT_BY_QUICK if config.option.quick else ()))
    left_out = [item for item in items if any(map(item.get_closest_marker, out_of))]
    if left_out:
        chosen = set(items) - set(left_out)
        items[:] = [item for item in items if item in chosen]
        config.hook.pytest_deselected(items=left_out)
