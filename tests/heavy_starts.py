"""Heavy processes that tests start: counted where they are started, budgeted for every suite.

Seconds depend on the machine; counts do not. More starts than the budget in pyproject.toml, or a
start by a test without the mark for it, fail the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pytest


class Heavy(StrEnum):
    """Kinds of heavy processes."""

    RUN = "run"
    """`rlhf run` or `rlhf drive`: a driver, Ray unless it joins a cluster, ranks with engines."""
    FORK_SERVER = "fork-server"
    """A fork server that a test has started: imports torch, transformers and vLLM."""
    EXPORT = "export"
    """`rlhf export`: imports torch and transformers."""
    RAY = "ray"
    """Ray that a test has started itself."""
    WORLD = "world"
    """A torch world; one process for every rank."""
    ENGINE = "engine"
    """A vLLM engine on a rank of a world."""
    CONTROL_PLANE = "control-plane"
    """etcd, an API server and controllers."""
    OPERATOR = "operator"
    """The operator in a process of its own."""
    POD = "pod"
    """A pod on a real node."""


MARKS = {
    Heavy.RUN: ("ray", "e2e"),
    Heavy.FORK_SERVER: ("ray",),
    Heavy.EXPORT: ("ray",),
    Heavy.RAY: ("ray",),
    Heavy.WORLD: ("ray",),
    Heavy.ENGINE: ("ray",),
    Heavy.CONTROL_PLANE: ("cluster", "e2e"),
    Heavy.OPERATOR: ("cluster", "e2e"),
    Heavy.POD: ("e2e",),
}
"""Marks by kind; a test that starts such a process has one of them."""


@dataclass
class Starts:
    """Numbers of heavy starts by kind."""

    own: Counter[str] = field(default_factory=Counter)
    """Processes that serve the tests of one suite."""
    shared: Counter[str] = field(default_factory=Counter)
    """Processes that serve the tests of several suites."""


_UNREPORTED = Starts()
"""Starts in this process since the last report of a test."""


def count_start(kind: Heavy, number: int = 1, *, shared: bool = False) -> None:
    """Count started processes; a shared one counts for the session."""
    # Which suite needs a shared one first depends on the selection of tests.
    if number:
        # A report of pytest-xdist carries plain strings only.
        (_UNREPORTED.shared if shared else _UNREPORTED.own)[kind.value] += number


def pop_starts() -> Starts:
    """Return the starts since the last call."""
    starts = Starts(_UNREPORTED.own.copy(), _UNREPORTED.shared.copy())
    _UNREPORTED.own.clear()
    _UNREPORTED.shared.clear()
    return starts


def check_mark(item: pytest.Item) -> None:
    """Fail a test that started a heavy process without a mark for it."""
    # `-m` and `--quick` leave out heavy tests by their marks, so marks must be true.
    for kind in (*_UNREPORTED.own, *_UNREPORTED.shared):
        marks = MARKS[Heavy(kind)]
        if not any(item.get_closest_marker(mark) for mark in marks):
            pytest.fail(
                f"started a heavy process ({kind}) without the mark {' or '.join(marks)}: add it",
                pytrace=False,
            )


def excesses(name: str, starts: Mapping[str, int], budget: Mapping[str, int]) -> Iterator[str]:
    """Yield a line per kind whose starts exceed the budget."""
    for kind, number in sorted(starts.items()):
        if number > budget.get(kind, 0):
            yield (
                f"error: {name} started {number} of {kind}, allowed {budget.get(kind, 0)}: share"
                " one with another test, or change the budget in pyproject.toml, with the reason"
            )
