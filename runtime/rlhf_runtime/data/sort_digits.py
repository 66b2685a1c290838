"""The builtin task: sort six random digits. The answer to `402991=` is `012499`.

Training and evaluation prompts are one draw without repetition, so they never overlap.
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
    """Yield 32,768 rows with `prompt` and `answer`; no prompt occurs twice or in the evaluation."""
    return _rows(_numbers(seed)[EVALUATION_ROWS:])


def training_pairs(seed: int) -> Iterator[Mapping[str, Any]]:
    """Yield the same prompts with `chosen`, the answer, and `rejected`, the answer with a mistake.

    Mistakes: two digits swapped, one replaced, one missing, one too many, or the sorted digits of
    another number.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, DIGITS, 2])))
    mistakes = (_swap, _replace, _remove, _insert, _replace_and_sort)
    for row in training_rows(seed):
        right = row["answer"]
        mistake = mistakes[generator.integers(len(mistakes))]
        wrong = mistake(list(right), generator)
        yield {"prompt": row["prompt"], "chosen": right, "rejected": "".join(wrong)}


def _swap(digits: list[str], generator: np.random.Generator) -> list[str]:
    """Swap two different digits; if all are equal replace one."""
    first = generator.integers(DIGITS)
    others = [index for index in range(DIGITS) if digits[index] != digits[first]]
    if not others:
        return _replace(digits, generator)
    other = generator.choice(others)
    digits[first], digits[other] = digits[other], digits[first]
    return digits


def _replace(digits: list[str], generator: np.random.Generator) -> list[str]:
    index = generator.integers(DIGITS)
    digits[index] = str((int(digits[index]) + generator.integers(1, 10)) % 10)
    return digits


def _remove(digits: list[str], generator: np.random.Generator) -> list[str]:
    del digits[generator.integers(DIGITS)]
    return digits


def _insert(digits: list[str], generator: np.random.Generator) -> list[str]:
    digits.insert(generator.integers(DIGITS + 1), str(generator.integers(10)))
    return digits


def _replace_and_sort(digits: list[str], generator: np.random.Generator) -> list[str]:
    return sorted(_replace(digits, generator))


def evaluation_rows(seed: int) -> Iterator[Mapping[str, Any]]:
    """Yield 256 evaluation rows with `prompt` and `answer`."""
    return _rows(_numbers(seed)[:EVALUATION_ROWS])


def _numbers(seed: int) -> NDArray[np.int64]:
    # One draw without replacement, so that training and evaluation rows never overlap.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, DIGITS])))
    return generator.choice(10**DIGITS, size=EVALUATION_ROWS + TRAINING_ROWS, replace=False)


def _rows(numbers: NDArray[np.int64]) -> Iterator[Mapping[str, Any]]:
    for number in numbers.tolist():
        digits = f"{number:0{DIGITS}d}"
        yield {"prompt": f"{digits}=", "answer": "".join(sorted(digits))}
