"""The builtin task: sort six random digits. `402991=` wants `012499`.

Training and evaluation prompts come from one draw without repetition, so they never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGITS = 6
EVALUATION_ROWS = 256
TRAINING_ROWS = 32768


def training_rows(seed: int) -> Iterator[Mapping[str, Any]]:
    """32,768 rows with `prompt` and `answer`; no prompt occurs twice or in the evaluation rows."""
    return _rows(_numbers(seed)[EVALUATION_ROWS:])


def training_pairs(seed: int) -> Iterator[Mapping[str, Any]]:
    """The same prompts with `chosen`, the answer, and `rejected`, the answer with a mistake: two
    digits have changed places, one is another, is missing, or is one too many, or a similar number
    was sorted."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, DIGITS, 2])))
    mistakes = (_swapped, _replaced, _one_less, _one_more, _of_another)
    for row in training_rows(seed):
        right = row["answer"]
        mistake = mistakes[generator.integers(len(mistakes))]
        wrong = mistake(list(right), generator)
        yield {"prompt": row["prompt"], "chosen": right, "rejected": "".join(wrong)}


def _swapped(digits: list[str], generator: np.random.Generator) -> list[str]:
    """Two different digits in each other's place; where all are equal one is replaced."""
    first = generator.integers(DIGITS)
    others = [place for place in range(DIGITS) if digits[place] != digits[first]]
    if not others:
        return _replaced(digits, generator)
    other = generator.choice(others)
    digits[first], digits[other] = digits[other], digits[first]
    return digits


def _replaced(digits: list[str], generator: np.random.Generator) -> list[str]:
    place = generator.integers(DIGITS)
    digits[place] = str((int(digits[place]) + generator.integers(1, 10)) % 10)
    return digits


def _one_less(digits: list[str], generator: np.random.Generator) -> list[str]:
    del digits[generator.integers(DIGITS)]
    return digits


def _one_more(digits: list[str], generator: np.random.Generator) -> list[str]:
    digits.insert(generator.integers(DIGITS + 1), str(generator.integers(10)))
    return digits


def _of_another(digits: list[str], generator: np.random.Generator) -> list[str]:
    return sorted(_replaced(digits, generator))


def evaluation_rows(seed: int) -> Iterator[Mapping[str, Any]]:
    """256 held-out rows with `prompt` and `answer`."""
    return _rows(_numbers(seed)[:EVALUATION_ROWS])


def _numbers(seed: int) -> NDArray[np.int64]:
    """Distinct six-digit numbers, leading zeros included; the first ones are held out."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, DIGITS])))
    return generator.choice(10**DIGITS, size=EVALUATION_ROWS + TRAINING_ROWS, replace=False)


def _rows(numbers: NDArray[np.int64]) -> Iterator[Mapping[str, Any]]:
    for number in numbers.tolist():
        digits = f"{number:0{DIGITS}d}"
        yield {"prompt": f"{digits}=", "answer": "".join(sorted(digits))}
