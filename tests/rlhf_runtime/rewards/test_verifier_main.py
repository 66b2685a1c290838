from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.messages import Fault
from rlhf_runtime.rewards.verifier_main import CannotLoad, load_verifier, score_batch

SAMPLES = [Sample("p", response, {}, True) for response in ("a", "b", "c")]


def test_its_process_imports_nothing_but_the_standard_library() -> None:
    code = """
import sys
before = set(sys.modules)  # site packages import some
import rlhf_runtime.rewards.verifier_main
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""
    imported = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert imported - sys.stdlib_module_names == {"__mp_main__", "rlhf_api", "rlhf_runtime"}


def returning(result: Any) -> Callable[..., Any]:
    return lambda samples: result


@pytest.mark.parametrize(
    "result", [[1, 0.5, True], (1.0, 0.5, 1), np.array([1.0, 0.5, 1.0]), iter([1, 0.5, 1])]
)
def test_any_sequence_of_numbers_is_taken(result: object) -> None:
    batch = score_batch(returning(result), SAMPLES, {})
    assert batch.values.tolist() == [1.0, 0.5, 1.0]
    assert (batch.batch_fault, dict(batch.faults), batch.detail) == (None, {}, "")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (math.nan, Fault.NON_FINITE),
        (math.inf, Fault.NON_FINITE),
        (1e39, Fault.NON_FINITE),
        ("1.0", Fault.NOT_A_NUMBER),
        ([1.0], Fault.NOT_A_NUMBER),
    ],
)
def test_a_bad_value_spoils_its_own_sample_only(value: object, fault: Fault) -> None:
    batch = score_batch(returning([1.0, value, 2.0]), SAMPLES, {})
    assert batch.values.tolist() == [1.0, 0.0, 2.0]
    assert dict(batch.faults) == {1: (fault, f"got {value!r}, allowed a finite number")}


def test_none_is_an_abstention_and_no_fault() -> None:
    batch = score_batch(returning([None, 0.5, None]), SAMPLES, {})
    assert batch.values.tolist() == [0.0, 0.5, 0.0]
    assert (batch.abstained, dict(batch.faults), batch.batch_fault) == ((0, 2), {}, None)


@pytest.mark.parametrize(
    "result", [[1.0], [1.0] * 4, [], None, 1.0, "123", {"a": 1, "b": 2, "c": 3}]
)
def test_a_wrong_count_spoils_the_batch(result: object) -> None:
    batch = score_batch(returning(result), SAMPLES, {})
    expected = Fault.RAISED if result is None or result == 1.0 else Fault.WRONG_COUNT
    assert batch.batch_fault is expected
    assert batch.retry_alone is (expected is Fault.RAISED)


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "why"),
    [
        ("no_such_package.module:name", {}, "no such module: got no_such_package.module"),
        ("my_verifiers:missing", {}, "got missing, allowed .*by_response, .*length"),
        ("my_verifiers:NUMBER", {}, "not a function: got NUMBER of type int"),
        ("my_verifiers:later", {}, "an async function.* got async def later, allowed a plain"),
        ("my_verifiers:later_too", {}, "an async function.* got async def later_too"),
        ("my_verifiers:length", {"speed": 1}, "does not take its parameters: .*speed"),
        ("broken:score", {}, "(?s)cannot be imported.*line 1.*ZeroDivisionError"),
        ("needs:score", {}, "(?s)needs, which raised.*No module named 'no_such_dependency'"),
        ("quits:score", {}, "(?s)quits, which raised.*SystemExit: 5"),
    ],
)
def test_what_cannot_be_loaded_is_told(
    verifiers: Path, entrypoint: str, parameters: dict[str, Any], why: str
) -> None:
    (verifiers / "broken.py").write_text("1 / 0\n")
    (verifiers / "needs.py").write_text("import no_such_dependency\n")
    (verifiers / "quits.py").write_text("raise SystemExit(5)\n")
    with pytest.raises(CannotLoad, match=why):
        load_verifier(entrypoint, parameters)


def test_a_traceback_shows_the_users_code_only(verifiers: Path) -> None:
    verifier = load_verifier("my_verifiers:by_response", {})
    batch = score_batch(verifier, [Sample("p", "raise", {}, True)], {})
    detail = batch.detail
    assert batch.batch_fault is Fault.RAISED
    assert "a verifier's own mistake" in detail
    assert "in deeper" in detail
    assert "verifier_main" not in detail
