"""The main program of a process that makes rows of reasoning_gym, as lines of JSON."""

# Imported by its owner, too, so the package is imported by functions only.

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_runtime.end_with_parent import end_with

# Entries of a line: a row, or why there is none.
ROW = "row"
REFUSAL = "refusal"
FAILURE = "failure"


def main(order: str, owner_pid: int) -> None:
    """Write the rows of a dataset to standard output.

    Args:
        order: dataset, parameters, seed and size as JSON.
        owner_pid: the process that started this one; this process ends with it.
    """
    end_with(owner_pid)
    # What generators print must not stand between the lines.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with lines:
        for line in _lines(**json.loads(order)):
            # At once: an owner with a time limit waits for few rows only.
            print(line, file=lines, flush=True)


def _lines(dataset: str, parameters: Mapping[str, Any], seed: int, size: int) -> Iterator[str]:
    import numpy as np

    from rlhf_runtime.reasoning_gym_datasets import GeneratorUnusable, make_dataset

    try:
        items = make_dataset(dataset, parameters, seed=seed, size=size)
    except GeneratorUnusable as error:
        yield json.dumps({REFUSAL: str(error)})
        return
    for number in range(size):
        # Some generators draw from the global ones.
        random.seed(seed + number)
        np.random.seed((seed + number) % 2**32)
        try:
            item = items[number]
            row = {"prompt": item["question"], **item, "parameters": parameters}
            line = json.dumps({ROW: row}, default=_json_value)
        # A generator may find only here that it cannot meet its settings.
        except Exception as error:
            reason = str(error) or type(error).__name__
            text = (
                f"{dataset} cannot make row {number}: got {reason} with parameters {parameters}; "
                "change the parameters"
            )
            yield json.dumps({FAILURE: text})
            return
        yield line


def _json_value(value: Any) -> Any:
    """Convert a value that JSON lacks: a number of numpy, or to text, such as a fraction."""
    return value.item() if hasattr(value, "item") else str(value)
