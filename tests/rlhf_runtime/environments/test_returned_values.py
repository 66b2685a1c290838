"""Values that the user's code returns."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.environments.returned_values import (
    MAX_SNAPSHOT_BYTES,
    BadValue,
    answer_text,
    observation_text,
    raised_text,
    restored_snapshot,
    reward_value,
    shorten,
    snapshot_value,
    turn_reward_value,
)


class Tensor:
    def item(self) -> float:
        return 0.5


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError


class Closed:
    @property
    def item(self) -> None:
        raise RuntimeError


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ("ä", "ä"),
        (3, "3"),
        (2.5, "2.5"),
        (True, "true"),
        (None, "null"),
        (Tensor(), "0.5"),
        ([Tensor()], "[0.5]"),
        ([1, "ä"], '[1, "ä"]'),
        ({"a": (1, 2)}, '{"a": [1, 2]}'),
        ("a\ud800b", "a?b"),
        (["\udcff"], '["?"]'),
    ],
)
def test_texts_and_json_values_are_answers(value: Any, text: str) -> None:
    assert answer_text(value) == text


def circle() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


@pytest.mark.parametrize("value", [b"x", {1, 2}, Rude(), [Rude()], Closed(), circle(), [10**5000]])
def test_other_values_are_no_answers(value: Any) -> None:
    with pytest.raises(BadValue, match="the tool returned"):
        answer_text(value)


def test_an_exception_becomes_one_line() -> None:
    assert raised_text(ValueError("Game over.")) == "error: ValueError: Game over."
    assert raised_text(KeyError("a")) == "error: KeyError: 'a'"
    assert raised_text(SystemExit(3)) == "error: SystemExit: 3"
    assert "Odd" in raised_text(Odd())


@given(st.integers(0, 1000), st.integers(100, 500))
def test_a_long_text_keeps_both_ends_within_the_limit(length: int, limit: int) -> None:
    text = "".join(chr(97 + number % 25) for number in range(length))
    short = shorten(text, limit)
    assert len(short) <= limit
    assert shorten(short, limit) == short
    if len(text) <= limit:
        assert short == text
    else:
        kept = limit // 2 - 30
        assert short[:kept] == text[:kept] and short[-kept:] == text[-kept:]
        assert "characters left out]" in short


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (1, 1.0),
        (True, 1.0),
        (Tensor(), 0.5),
        (None, None),
        ({"a": 1, "b": 2.5}, {"a": 1.0, "b": 2.5}),
    ],
)
def test_rewards_are_numbers_alone_or_by_name(value: Any, reward: Any) -> None:
    assert reward_value(value, "reward") == reward


@pytest.mark.parametrize(
    "value", ["1", math.nan, math.inf, 1e300, [1.0], {"a": None}, {1: 1.0}, {"a": "x"}, Rude()]
)
def test_other_rewards_are_refused(value: Any) -> None:
    with pytest.raises(BadValue, match="reward returned .*, allowed a finite number"):
        reward_value(value, "reward")


def test_a_turn_has_one_number() -> None:
    assert turn_reward_value(2) == 2.0 and turn_reward_value(None) is None
    with pytest.raises(BadValue, match="turn_reward returned {'a': 1}"):
        turn_reward_value({"a": 1})


def test_an_observation_is_a_text_or_none() -> None:
    assert observation_text("x" * 1000, 200) == shorten("x" * 1000, 200)
    assert observation_text(None, 200) is None
    with pytest.raises(BadValue, match="reset returned 3, allowed a text or None"):
        observation_text(3, 200)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


@given(json_values | st.binary())
def test_a_snapshot_survives_the_journal(value: Any) -> None:
    written = json.dumps(snapshot_value(value))
    assert restored_snapshot(json.loads(written)) == value


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, {"a": {1}}, math.nan, Rude(), circle()])
def test_a_snapshot_that_would_come_back_otherwise_is_refused(value: Any) -> None:
    with pytest.raises(BadValue, match="snapshot returned .*, allowed bytes or a JSON value"):
        snapshot_value(value)


def test_a_large_snapshot_is_refused() -> None:
    with pytest.raises(BadValue, match=f"allowed {MAX_SNAPSHOT_BYTES}"):
        snapshot_value("x" * MAX_SNAPSHOT_BYTES)
