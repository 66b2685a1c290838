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
    """The same prompts with `chosen`, the answer, and `rejected`, in which two digits have changed
    places, or, where all are equal, one is another."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, DIGITS, 2])))
    for row in training_rows(seed):
        right = row["answer"]
        wrong = list(right)
        others = [place for place in range(1, DIGITS) if right[place] != right[0]]
        if others:
            first = int(generator.choice([p for p in range(DIGITS) if right[p] == right[0]]))
            other = int(generator.choice(others))
            wrong[first], wrong[other] = wrong[other], wrong[first]
        else:
            wrong[-1] = str((int(right[-1]) + 1) % 10)
        yield {"prompt": row["prompt"], "chosen": right, "rejected": "".join(wrong)}


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
