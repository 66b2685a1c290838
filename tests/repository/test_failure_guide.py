"""The guide's table of failures lists every reason of the code, and no other, with exit codes."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode

from .tracked_files import ROOT

GUIDE = ROOT / "docs" / "guides" / "when-things-fail.md"
PACKAGES = {
    "rlhf_api": "crds",
    "rlhf_kube": "crds",
    "rlhf_flow": "runtime",
    "rlhf_sizing": "runtime",
    "rlhf_planner": "runtime",
    "rlhf_runtime": "runtime",
    "rlhf_cli": "runtime",
}
"""Where each lies."""
ROW = re.compile(r"^\| `(?P<reason>[A-Za-z]+)` \| (?P<code>\d+) \| (?P<rest>.+) \|$", re.MULTILINE)


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the packages, parsed, by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def defining_modules() -> set[str]:
    """Modules with a class that derives from RlhfError, found by the names of bases."""
    errors, defining = {"RlhfError"}, {"rlhf_api.errors"}
    while True:
        before = len(errors)
        for module, tree in sources().items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and errors & set(map(last_name, node.bases)):
                    errors.add(node.name)
                    defining.add(module)
        if len(errors) == before:
            return defining


def last_name(node: ast.expr) -> str:
    """What a class is called where it is named: `Name` or `module.Name`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def made() -> set[tuple[str, str]]:
    """Module and name of every class that is called by the name that it was imported under."""
    found = set()
    for module, tree in sources().items():
        origins = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.add(origins.get(node.func.id, (module, node.func.id)))
    return found


def derived(kind: type[RlhfError]) -> Iterator[type[RlhfError]]:
    for each in kind.__subclasses__():
        yield each
        yield from derived(each)


@cache
def failures() -> tuple[type[RlhfError], ...]:
    """Classes of errors that can happen: all but bases that nobody raises."""
    for module in sorted(defining_modules()):
        importlib.import_module(module)
    happening = made()
    return tuple(
        kind
        for kind in derived(RlhfError)
        if kind.__module__.partition(".")[0] in PACKAGES
        and (not kind.__subclasses__() or (kind.__module__, kind.__name__) in happening)
    )


def table() -> list[tuple[str, int]]:
    """Reasons and exit codes of the guide's rows, in their order."""
    return [(row["reason"], int(row["code"])) for row in rows()]


def rows() -> list[re.Match[str]]:
    return list(ROW.finditer(GUIDE.read_text(encoding="utf-8")))


def test_every_reason_of_the_code_is_in_the_guide_with_its_exit_code() -> None:
    expected = {(kind.reason, int(kind.exit_code)) for kind in failures()}
    assert expected - set(table()) == set()


def test_every_reason_of_the_guide_is_in_the_code() -> None:
    expected = {(kind.reason, int(kind.exit_code)) for kind in failures()}
    assert set(table()) - expected == set()


def test_no_reason_is_listed_twice() -> None:
    reasons = [reason for reason, _ in table()]
    assert sorted(set(reasons)) == sorted(reasons)


def test_every_row_says_what_happened_and_what_to_do() -> None:
    described = [row["rest"].split(" | ") for row in rows()]
    assert described
    assert all(len(cells) == 2 and all(map(str.strip, cells)) for cells in described)


def test_bases_that_nobody_raises_are_left_out_and_others_are_not() -> None:
    reasons = {kind.reason for kind in failures()}
    assert reasons.isdisjoint({"Error", "RuntimeFailure", "InvalidData", "InvalidPlan"})
    assert {"RewardFailed", "InvalidReward", "InvalidReshard", "WorkerLost"} <= reasons


def test_reasons_do_not_contradict_each_other_in_their_exit_codes() -> None:
    codes: dict[str, set[ExitCode]] = {}
    for kind in failures():
        codes.setdefault(kind.reason, set()).add(kind.exit_code)
    assert {reason: found for reason, found in codes.items() if len(found) > 1} == {}
