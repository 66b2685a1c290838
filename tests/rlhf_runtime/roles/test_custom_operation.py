"""What a user's operation gives back is checked where it does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_flow.step.columns import Kind
from rlhf_flow.step.operations import Custom, Scope
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.errors import UserCodeFailed
from rlhf_runtime.roles.custom_operation import run_custom

LENGTHS = np.array([2, 0, 3], dtype=np.int32)
COLUMNS = {
    "response_tokens": Column(np.arange(5), LENGTHS),
    "reward_scores": Column(np.array([1.0, 0.0, 0.5])),
}
TOKENS = Column(np.ones(5, dtype=np.float32), LENGTHS)


def run(made: Any, monkeypatch: pytest.MonkeyPatch, *writes: str, **kinds: Kind) -> Any:
    """Run an operation whose function returns what is given, or calls it."""
    module = ModuleType("given_operations")

    def function(columns: Mapping[str, Column]) -> Any:
        return made(columns) if callable(made) else made

    module.function = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "given_operations", module)
    reads = ["reward_scores"]
    operation = Custom("given_operations:function", reads, list(writes), kinds=kinds)
    return run_custom(operation, COLUMNS, 3, {})


def test_it_gets_what_it_reads_and_gives_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(columns: Mapping[str, Column]) -> dict[str, Column]:
        assert list(columns) == ["reward_scores"]
        return {"advantages": TOKENS, "unasked": TOKENS}

    assert run(of, monkeypatch, "advantages") == {"advantages": TOKENS}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "returns no mapping: got NoneType, allowed a mapping with advantages"),
        (np.ones(3), "returns no mapping: got ndarray"),
        ({"advantage": TOKENS}, "does not return advantages: got advantage, allowed"),
        ({"advantages": np.ones(5)}, r"advantages as something else: got ndarray.*Column\(values"),
        ({"advantages": Column(np.ones(3))}, r"one value per row.*np\.repeat\(values, lengths\)"),
        ({"advantages": Column(np.ones(2), LENGTHS[:2])}, "got 2, allowed one entry .* 3 rows"),
        ({"advantages": Column(np.ones(5), LENGTHS[::-1])}, "got 3 values in row 0, allowed 2"),
        ({"advantages": Column(np.array(["a"] * 5), LENGTHS)}, "as <U1: allowed numbers"),
        ({"advantages": Column([1.0] * 5, LENGTHS)}, "Column of something else: got list"),  # type: ignore[arg-type]
    ],
)
def test_wrong_columns_are_named_with_the_functions_place(
    made: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserCodeFailed, match=message) as caught:
        run(made, monkeypatch, "advantages")
    assert f"given_operations:function (test_custom_operation.py:{LINE}) " in str(caught.value)


LINE = run.__code__.co_firstlineno + 4


@pytest.mark.parametrize(
    "column", [TOKENS, Column(np.ones((3, 2)))], ids=["values per token", "a matrix"]
)
def test_a_field_of_rows_has_one_value_for_each(
    column: Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserCodeFailed, match="with several values per row.*a score per row"):
        run({"rate": column}, monkeypatch, "rate", rate=Kind.SCORES)
    with pytest.raises(UserCodeFailed, match="with several values per row.*a score per row"):
        run({"cost_scores": column}, monkeypatch, "cost_scores")
    assert run({"rate": column}, monkeypatch, "rate"), "nobody said what it holds"


def test_a_mask_has_a_value_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run({"response_mask": TOKENS}, monkeypatch, "response_mask")
    with pytest.raises(UserCodeFailed, match="response_mask with one value per row: got no len"):
        run({"response_mask": Column(np.ones(3))}, monkeypatch, "response_mask")
    with pytest.raises(UserCodeFailed, match="response_mask of other lengths than the resp"):
        run({"response_mask": Column(np.ones(5), LENGTHS[::-1])}, monkeypatch, "response_mask")


def test_texts_are_packed_as_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pack_texts(["{}", "", "[]"])
    assert run({"lines": lines}, monkeypatch, "lines") == {"lines": lines}
    for wrong in (TOKENS, Column(lines.values[:3])):
        with pytest.raises(UserCodeFailed, match=r"lines as \w+: allowed texts; write pack_texts"):
            run({"lines": wrong}, monkeypatch, "lines")


def test_what_it_raises_is_shown_from_its_own_line_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(columns: Mapping[str, Column]) -> None:
        raise ZeroDivisionError("no rows")

    with pytest.raises(UserCodeFailed, match="raised ZeroDivisionError: no rows; correct") as e:
        run(raises, monkeypatch, "advantages")
    assert "allowed a mapping" not in str(e.value)
    assert "in raises" in str(e.value) and "run_custom" not in str(e.value)


def test_whether_there_are_enough_rows_is_the_same_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = {"enough": Column(np.array([True, True, False]))}
    with pytest.raises(UserCodeFailed, match="enough with different answers: got both"):
        run(mixed, monkeypatch, "enough")
    with pytest.raises(UserCodeFailed, match="enough as <U2: allowed numbers"):
        run({"enough": Column(np.array(["no"] * 3))}, monkeypatch, "enough")
    assert run({"enough": Column(np.full(3, False))}, monkeypatch, "enough")


def keeping(change: Any, monkeypatch: pytest.MonkeyPatch, state: dict[str, torch.Tensor]) -> None:
    """Run an operation that keeps a mean and a count, and changes them as given."""
    module = ModuleType("given_operations")

    def function(columns: Mapping[str, Column], *, beta: float, state: dict[str, Any]) -> Any:
        change(state, beta)
        return {"y": columns["reward_scores"]}

    module.function = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "given_operations", module)
    operation = Custom(
        "given_operations:function",
        ["reward_scores"],
        ["y"],
        {"beta": 0.5},
        scope=Scope.BATCH,
        keeps={"mean": 2.0, "count": 0},
    )
    run_custom(operation, COLUMNS, 3, state)


def test_what_it_keeps_is_given_back_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what others keep; checkpoints hold float64 scalars."""

    def change(state: dict[str, Any], beta: float) -> None:
        state["count"] += 1
        state["mean"] *= beta

    state = {"multiplier": torch.tensor(3.0, dtype=torch.float64)}
    for count in (1, 2, 3):
        keeping(change, monkeypatch, state)
        expected = {"multiplier": 3.0, "mean": 2.0 * 0.5**count, "count": count}
        assert {name: value.item() for name, value in state.items()} == expected
        assert {value.dtype for value in state.values()} == {torch.float64}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state, _: state.update(mean=float("nan")),
            r"not a finite number: got state\['mean'\]",
        ),
        (lambda state, _: state.update(mean=np.ones(2)), "not a finite number"),
        (lambda state, _: state.update(other=1.0), "other names than keeps= lists: .* add other"),
        (lambda state, _: state.pop("count"), "other names than keeps= lists: .* add count"),
    ],
)
def test_what_it_keeps_are_the_numbers_that_it_names(
    change: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: dict[str, torch.Tensor] = {}
    with pytest.raises(UserCodeFailed, match=message):
        keeping(change, monkeypatch, state)
    assert state == {}
