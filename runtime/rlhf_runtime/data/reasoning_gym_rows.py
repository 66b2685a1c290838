"""Rows of generators of the package reasoning_gym, made one at a time in a process of their own.

Some generators depend on the order of sets of texts, which Python changes with every process. That
process has a fixed order, so the same settings give the same rows everywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rlhf_api.spec.row_sources import ReasoningGymData
from rlhf_runtime.child_python import child_command
from rlhf_runtime.data.errors import DataNotFound, DataUnreadable
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.reasoning_gym_main import FAILURE, REFUSAL, ROW
from rlhf_runtime.data.source_setting import SourceSetting, Split

# Most generators make row i from seed + i: no source of training rows is so long that it reaches
# the seeds of the evaluation.
DEFAULT_SEEDS = {Split.TRAIN: 0, Split.PRETRAINING: 0, Split.EVALUATION: 1_000_000_000}
# It joins other datasets; a job's sources do the same.
COMPOSITE = "composite"
# Measured with version 0.1.25: a few of its programs draw numbers that no seed determines.
UNREPRODUCIBLE = "codeio"
_PROGRAM = (
    "from rlhf_runtime.data.reasoning_gym_main import main; main(sys.argv[2], int(sys.argv[3]))"
)


def read_rows(source: ReasoningGymData, setting: SourceSetting) -> Iterator[Row]:
    """Make the rows of a generator.

    A row has the generator's question, answer and metadata; prompt, the same text as question; and
    parameters, with which a verifier makes the dataset again.

    Args:
        source: the generator and its settings.
        setting: the manifest's field of the source.

    Raises (while iterating):
        DataNotFound: no such generator or none that a job can use, it refuses its parameters, or
            the package is missing.
        DataUnreadable: it cannot make a row.
    """
    if source.dataset == COMPOSITE:
        raise DataNotFound(
            f"{setting}.reasoningGym names a dataset that joins others: got {COMPOSITE}, allowed "
            "single ones; name each of them in sources"
        ).at(*setting.location("reasoningGym", "dataset"))
    if source.dataset == UNREPRODUCIBLE:
        raise DataNotFound(
            f"{setting}.reasoningGym names a dataset whose rows differ between processes: got "
            f"{UNREPRODUCIBLE}, allowed others; write its rows into a file once, and name that by "
            "path"
        ).at(*setting.location("reasoningGym", "dataset"))
    seed = DEFAULT_SEEDS[setting.split] if source.seed is None else source.seed
    order = {
        "dataset": source.dataset,
        "parameters": source.parameters,
        "seed": seed,
        "size": source.size,
    }
    with _generator(json.dumps(order)) as (process, lines):
        num_rows = 0
        for line in lines:
            message = json.loads(line)
            if ROW not in message:
                kind = DataNotFound if REFUSAL in message else DataUnreadable
                text = message.get(REFUSAL) or message[FAILURE]
                raise kind(f"{setting}.reasoningGym: {text}").at(*setting.location("reasoningGym"))
            num_rows += 1
            yield message[ROW]
        if num_rows < source.size:
            raise DataUnreadable(
                f"{setting}.reasoningGym: the process that makes rows of {source.dataset} ended "
                f"too early: got {num_rows} rows and exit code {process.wait()}, allowed "
                f"{source.size} rows; give it more memory, or change the parameters"
            ).at(*setting.location("reasoningGym"))


@contextmanager
def _generator(order: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start a process that makes rows, and end it with the body."""
    process = subprocess.Popen(
        child_command(_PROGRAM, order, str(os.getpid())),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            yield process, lines
    finally:
        process.kill()
        process.wait()
