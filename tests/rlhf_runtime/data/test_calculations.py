from __future__ import annotations

import ast
from itertools import islice
from typing import Any

import pytest

from rlhf_runtime.data.calculations import evaluation_rows, training_rows
from rlhf_runtime.data.character_tokenizer import TOKENS

COMPUTE = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}


def value_of(prompt: str) -> int:
    """The value of a prompt, by Python."""
    value: int = eval(prompt.removesuffix("="), {"__builtins__": {}})
    return value


def made(text: str) -> int:
    """The result of a call."""
    name, _, arguments = text.partition("(")
    a, b = ast.literal_eval(f"({arguments}")
    return COMPUTE[name](a, b)


def test_the_answer_is_the_value_of_the_prompt() -> None:
    for row in islice(training_rows(0), 500):
        assert row["answer"] == str(value_of(row["prompt"]))


def test_conversations_call_the_calculator_and_a_quarter_gets_to_the_answer() -> None:
    num_solved = 0
    for row in islice(training_rows(0), 500):
        *turns, last = row["conversation"]
        calls, answers = turns[::2], turns[1::2]
        assert [turn["role"] for turn in turns] == ["assistant", "tool"] * len(calls)
        assert [made(turn["content"]) for turn in calls] == [int(a["content"]) for a in answers]
        assert last == {"role": "assistant", "content": answers[-1]["content"]}
        num_solved += len(calls) == 2
        assert len(calls) == 1 or last["content"] == row["answer"]
    assert 100 < num_solved < 150


def test_the_calculator_of_the_example_has_the_tools_of_the_task() -> None:
    from examples.environments.calculator import Calculator

    tools = {name: tool for name, tool in vars(Calculator).items() if not name.startswith("_")}
    assert tools.keys() == COMPUTE.keys()
    for name, compute in COMPUTE.items():
        assert tools[name](Calculator(), 12, 34) == compute(12, 34)


def test_all_signs_and_orders_occur_and_the_tokenizer_has_their_characters() -> None:
    rows: list[Any] = list(islice(training_rows(0), 500))
    forms = {"".join("n" if c.isdigit() else c for c in row["prompt"]) for row in rows}
    assert len(forms) == 8
    texts = [row["prompt"] + "".join(m["content"] for m in row["conversation"]) for row in rows]
    assert set("".join(texts)) <= set(TOKENS)


@pytest.mark.parametrize("seed", [0, 1])
def test_evaluation_prompts_are_held_out(seed: int) -> None:
    training = [row["prompt"] for row in training_rows(seed)]
    evaluation = [row["prompt"] for row in evaluation_rows(seed)]
    assert len(evaluation) == 256
    assert len(set(training) | set(evaluation)) == len(training) + len(evaluation)


def test_equal_seeds_give_equal_rows_and_others_do_not() -> None:
    assert list(evaluation_rows(3)) == list(evaluation_rows(3))
    assert list(evaluation_rows(3)) != list(evaluation_rows(4))
