from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.messages import BatchScores, RewardFault
from rlhf_runtime.rewards.verifier_main import CannotLoad, ResultLoop, load_verifier, score_batch

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


def score(verifier: Callable[..., Any], samples: Sequence[Sample] = SAMPLES) -> BatchScores:
    with ResultLoop() as loop:
        return score_batch(verifier, samples, {}, loop)


def numbers() -> Iterator[float]:
    """Numbers without an end."""
    while True:
        yield 1.0


class Odd:
    """A value that is no number, of a library whose errors are its own."""

    def item(self) -> float:
        raise RuntimeError("a tensor of two elements")

    def __repr__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    "result",
    [
        [1, 0.5, True],
        (1.0, 0.5, 1),
        np.array([1.0, 0.5, 1.0]),
        np.array([[1.0], [0.5], [1.0]], np.float32),
        iter([1, 0.5, 1]),
        torch.tensor([1.0, 0.5, 1.0], requires_grad=True),
        [np.int64(1), np.float16(0.5), np.array(1)],
        [torch.tensor([[1.0]]), torch.tensor(0.5, dtype=torch.bfloat16), Fraction(1)],
    ],
)
def test_any_sequence_of_numbers_is_taken(result: object) -> None:
    batch = score(returning(result))
    assert batch.values.tolist() == [1.0, 0.5, 1.0]
    assert (batch.batch_fault, dict(batch.faults), batch.detail) == (None, {}, "")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (math.nan, RewardFault.NON_FINITE),
        (math.inf, RewardFault.NON_FINITE),
        (1e39, RewardFault.NON_FINITE),
        (np.float32("nan"), RewardFault.NON_FINITE),
        (torch.tensor([float("-inf")]), RewardFault.NON_FINITE),
        ("1.0", RewardFault.NOT_A_NUMBER),
        (b"1", RewardFault.NOT_A_NUMBER),
        (np.str_("1"), RewardFault.NOT_A_NUMBER),
        ([1.0], RewardFault.NOT_A_NUMBER),
        (1j, RewardFault.NOT_A_NUMBER),
        (torch.tensor([1.0, 2.0]), RewardFault.NOT_A_NUMBER),
        (np.array([]), RewardFault.NOT_A_NUMBER),
    ],
)
def test_a_bad_value_spoils_its_own_sample_only(value: object, fault: RewardFault) -> None:
    batch = score(returning([1.0, value, 2.0]))
    assert batch.values.tolist() == [1.0, 0.0, 2.0]
    detail = f"got {value!r}, allowed a finite number, or None to abstain"
    assert dict(batch.faults) == {1: (fault, detail)}


@pytest.mark.parametrize(
    ("value", "fault", "shown"),
    [
        pytest.param(10**400, RewardFault.NON_FINITE, "got 10000", id="400 digits"),
        pytest.param(10**5000, RewardFault.NON_FINITE, "got ", id="5000 digits"),
        (Odd(), RewardFault.NOT_A_NUMBER, "got <Odd instance at "),
        pytest.param("long" * 1000, RewardFault.NOT_A_NUMBER, "got 'long", id="long"),
    ],
)
def test_a_value_that_cannot_be_converted_or_shown_spoils_its_own_sample_only(
    value: object, fault: RewardFault, shown: str
) -> None:
    batch = score(returning([1.0, value, 2.0]))
    assert batch.values.tolist() == [1.0, 0.0, 2.0] and batch.batch_fault is None
    assert batch.faults[1][0] is fault
    assert batch.faults[1][1].startswith(shown) and len(batch.faults[1][1]) < 300


def test_none_is_an_abstention_and_no_fault() -> None:
    batch = score(returning([None, 0.5, None]))
    assert batch.values.tolist() == [0.0, 0.5, 0.0]
    assert (batch.abstained, dict(batch.faults), batch.batch_fault) == ((0, 2), {}, None)


@pytest.mark.parametrize(
    "result",
    [
        [1.0],
        [1.0] * 4,
        [],
        None,
        1.0,
        "123",
        b"123",
        {"a": 1, "b": 2, "c": 3},
        {1, 2, 3},
        numbers(),
    ],
)
def test_a_wrong_count_spoils_the_batch(result: object) -> None:
    batch = score(returning(result))
    expected = RewardFault.RAISED if result is None or result == 1.0 else RewardFault.WRONG_COUNT
    assert batch.batch_fault is expected
    assert batch.retry_alone is (expected is RewardFault.RAISED)


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "why"),
    [
        ("no_such_package.module:name", {}, "no such module: got no_such_package.module"),
        ("my_verifiers:missing", {}, "got missing, allowed .*by_response, .*length"),
        ("my_verifiers:NUMBER", {}, "not a function: got NUMBER of type int"),
        ("my_verifiers:one_by_one", {}, "an async generator: got one_by_one, allowed"),
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
    batch = score(verifier, [Sample("p", "raise", {}, True)])
    detail = batch.detail
    assert batch.batch_fault is RewardFault.RAISED
    assert "a verifier's own mistake" in detail
    assert "in deeper" in detail
    assert "verifier_main" not in detail


def test_results_of_async_functions_are_awaited_all_on_one_event_loop(verifiers: Path) -> None:
    with ResultLoop() as loop:
        for entrypoint in ("my_verifiers:later", "my_verifiers:later_too"):
            verifier = load_verifier(entrypoint, {})
            for expected in (1.0, 2.0):
                assert score_batch(verifier, SAMPLES, {}, loop).values.tolist() == [expected] * 3


def test_a_traceback_of_an_async_function_shows_the_users_code_only(verifiers: Path) -> None:
    batch = score(load_verifier("my_verifiers:later_raises", {}))
    assert batch.batch_fault is RewardFault.RAISED and batch.retry_alone
    assert "in later_raises" in batch.detail and "in deeper" in batch.detail
    assert "asyncio" not in batch.detail and "verifier_main" not in batch.detail
