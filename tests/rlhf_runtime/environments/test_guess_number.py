"""Example 19: the game, and the written conversations of its data."""

from __future__ import annotations

import ast
from math import log
from pathlib import Path

import pytest
from examples.environments.guess_number import GuessNumber

from rlhf_runtime.data.character_tokenizer import TOKENS
from rlhf_runtime.data.files import Row, read_file

DATA = Path(__file__).parents[3] / "examples" / "data"


def game(secret: int) -> GuessNumber:
    game = GuessNumber()
    game.reset(secret)
    return game


def rows(name: str) -> list[Row]:
    return list(read_file(DATA / f"{name}.jsonl", "data.train.path"))


@pytest.mark.parametrize("secret", range(1, 16))
def test_halving_finds_every_number(secret: int) -> None:
    played, guess, step, gains = game(secret), 8, 4, 0.0
    while (answer := played.guess(guess)) != "found":
        guess, step = guess + (step if answer == "low" else -step), step // 2
        gains += played.turn_reward()
    assert played.reward() == 1 and gains + played.turn_reward() == pytest.approx(1)


def test_a_guess_is_worth_what_it_tells() -> None:
    played = game(10)
    assert played.guess(7) == "low" and played.turn_reward() == pytest.approx(log(15 / 8, 15))
    assert played.guess(3) == "low" and played.turn_reward() == 0
    assert played.guess(12) == "high" and played.turn_reward() == pytest.approx(log(2, 15))
    assert played.guess(10) == "found" and played.turn_reward() == pytest.approx(log(4, 15))
    assert played.guess(10) == "over" and played.turn_reward() == 0 and played.reward() == 1


def test_the_fourth_guess_is_the_last_one() -> None:
    played = game(10)
    assert [played.guess(99) for _ in range(4)] == ["high"] * 4
    assert played.turn_reward() == 0
    assert played.guess(10) == "over" and played.reward() == 0


def test_the_answers_of_written_conversations_are_those_of_the_game() -> None:
    written = rows("guess-number")
    for row in written:
        *turns, last = row["conversation"]
        played = game(row["secret"])
        for call, answer in zip(turns[::2], turns[1::2], strict=True):
            number = ast.literal_eval(call["content"].removeprefix("guess"))
            assert answer == {"role": "tool", "content": played.guess(number)}
        assert last == {"role": "assistant", "content": "done"}
    texts = {message["content"] for row in written for message in row["conversation"]}
    assert {"found", "low", "high"} < texts and set("".join(texts)) <= set(TOKENS)


def test_no_prompt_tells_the_secret() -> None:
    written, evaluated = rows("guess-number"), rows("guess-number-evaluation")
    assert {row["prompt"] for row in written + evaluated} == {"1-15?"}
    assert sorted(row["secret"] for row in evaluated) == list(range(1, 16))
