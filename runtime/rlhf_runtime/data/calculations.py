"""The builtin task for conversations with tools: calculate with three numbers.

The answer to `(47+83)*29=` is `3770`. A written conversation gets there by calls of a calculator:
`add(47,83)`, then `mul(130,29)`. Most written conversations give up after the first call, and
answer with its result: imitation teaches calls and little more. Training and evaluation prompts are
one draw without repetition, so they never overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

SMALLEST, LARGEST = 10, 99
"""Limits of the numbers in prompts."""
SOLVED = 0.25
"""Share of the written conversations that make both calls."""
EVALUATION_ROWS = 256
TRAINING_ROWS = 32768
_PURPOSE = 3
_NUMBERS = LARGEST - SMALLEST + 1


class _Tool(NamedTuple):
    """A tool of the calculator that conversations call."""

    name: str
    compute: Callable[[int, int], int]


_ADD = _Tool("add", lambda a, b: a + b)
_SUBTRACT = _Tool("sub", lambda a, b: a - b)
_MULTIPLY = _Tool("mul", lambda a, b: a * b)


class _Form(NamedTuple):
    """A form of prompts, with the two calls that solve it; RESULT is that of the first."""

    prompt: str
    first: _Tool
    first_operands: tuple[int, int]
    second: _Tool
    second_operands: tuple[int, int]


RESULT = 3
"""Index of the first call's result among the numbers of a prompt."""
_FORMS = tuple(
    form
    for sign, tool in (("+", _ADD), ("-", _SUBTRACT))
    for form in (
        _Form(f"{{}}*{{}}{sign}{{}}=", _MULTIPLY, (0, 1), tool, (RESULT, 2)),
        _Form(f"{{}}{sign}{{}}*{{}}=", _MULTIPLY, (1, 2), tool, (0, RESULT)),
        _Form(f"({{}}{sign}{{}})*{{}}=", tool, (0, 1), _MULTIPLY, (RESULT, 2)),
        _Form(f"{{}}*({{}}{sign}{{}})=", tool, (1, 2), _MULTIPLY, (0, RESULT)),
    )
)


def training_rows(seed: int) -> Iterator[Mapping[str, Any]]:
    """Yield 32,768 rows with `prompt`, `answer` and `conversation`; no prompt occurs twice or in
    the evaluation.

    `conversation` has the messages from the first call to what the assistant answers, calls as
    text. A share of SOLVED ends with the right answer.
    """
    return _rows(seed, slice(EVALUATION_ROWS, None))


def evaluation_rows(seed: int) -> Iterator[Mapping[str, Any]]:
    """Yield 256 evaluation rows of the same form."""
    return _rows(seed, slice(EVALUATION_ROWS))


def _rows(seed: int, part: slice) -> Iterator[Mapping[str, Any]]:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _PURPOSE])))
    count = EVALUATION_ROWS + TRAINING_ROWS
    numbers = generator.choice(len(_FORMS) * _NUMBERS**3, size=count, replace=False)
    is_solved = generator.random(count) < SOLVED
    return map(_row, numbers[part].tolist(), is_solved[part].tolist())


def _row(number: int, is_solved: bool) -> Mapping[str, Any]:
    """Return a row.

    Args:
        number: of the prompt, below len(_FORMS) * _NUMBERS**3.
        is_solved: False if the conversation gives up after the first call.
    """
    numbers = []
    for _ in range(3):
        number, digit = divmod(number, _NUMBERS)
        numbers.append(SMALLEST + digit)
    form = _FORMS[number]
    prompt = form.prompt.format(*numbers)
    messages = list[Mapping[str, str]]()
    for tool, operands in (
        (form.first, form.first_operands),
        (form.second, form.second_operands),
    ):
        a, b = (numbers[index] for index in operands)
        numbers.append(tool.compute(a, b))
        messages += [
            {"role": "assistant", "content": f"{tool.name}({a},{b})"},
            {"role": "tool", "content": str(numbers[-1])},
        ]
    shown = messages if is_solved else messages[:2]
    last = {"role": "assistant", "content": shown[-1]["content"]}
    return {"prompt": prompt, "answer": str(numbers[-1]), "conversation": [*shown, last]}
