"""The page of what jobs on a cluster say lists every reason in the operator's code, no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from rlhf_api.report import SavingProblem
from rlhf_api.status import JobPhase

from .tracked_files import ROOT

PAGE = ROOT / "docs" / "kubernetes" / "reasons.md"
CODE = ROOT / "operator" / "rlhf_operator"
ROW = re.compile(r"^\| `(?P<reason>[A-Za-z]+)` \| (?P<rest>.+) \|$", re.MULTILINE)
PLACES = {
    **{"Failure": 0, "PodProblem": 0, "Refusal": 0, "record_event": 0},
    **{"_wait": 1, "set_phase": 1, "fail": 1, "set_condition": 2},
}
"""Which argument of these calls is a reason."""
NAMES = ("reason", "BUG", "DIRTY_CLUSTER", "FORBIDDEN", "INVALID", "OF_ANOTHER_JOB")
"""What a reason is kept in."""


@cache
def made() -> frozenset[str]:
    """Every reason that stands in the code."""
    # The driver's word for why checkpoints fail becomes the condition's reason.
    found = {problem.value for problem in SavingProblem}
    for path in sorted(CODE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found |= {word for place in _reasons(node) for word in _texts(place)}
    return frozenset(found - {""})


def _reasons(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)
        place = PLACES.get(name)
        if place is not None and len(node.args) > place:
            yield node.args[place]
    elif isinstance(node, ast.Assign) and any(_name(each) in NAMES for each in node.targets):
        yield node.value


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _texts(node: ast.expr) -> Iterator[str]:
    """What an expression may be: itself, or either side of a choice."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))


def rows() -> list[re.Match[str]]:
    return list(ROW.finditer(PAGE.read_text(encoding="utf-8")))


def test_every_reason_of_the_operator_is_told() -> None:
    assert made() - {row["reason"] for row in rows()} == set()


def test_every_reason_that_is_told_is_in_the_code() -> None:
    assert {row["reason"] for row in rows()} - made() == set()


def test_the_code_is_read() -> None:
    assert {"Queued", "ImagePull", "PodsRefused", "DriverKilled", "Bug", "Ready"} <= made()


def test_no_reason_is_listed_twice() -> None:
    reasons = [row["reason"] for row in rows()]
    assert sorted(set(reasons)) == sorted(reasons)


def test_every_phase_is_told() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [phase for phase in JobPhase if phase.value not in text] == []
