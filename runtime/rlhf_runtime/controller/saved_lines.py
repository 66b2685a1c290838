"""Lines that a step saves: fetched by the driver after the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_flow.step.columns import LINES
from rlhf_runtime.controller.batch import Batch
from rlhf_runtime.controller.fetched_columns import fetch_columns
from rlhf_runtime.hooks import Hook


@dataclass(frozen=True)
class SaveCall:
    """A call that saves lines. It is not sent to workers."""

    name: str
    """Name of the saved file."""
    batch: Batch

    def lines(self, poll: Hook) -> bytes:
        """Wait for the lines of its rows, in the order of rows."""
        rows = np.arange(self.batch.shape.num_rows, dtype=np.int64)
        texts = fetch_columns(self.batch, (LINES,), rows, poll).load(rows)[LINES].runs()
        return b"".join(text.tobytes() + b"\n" for text in texts if len(text))


def lines_by_name(saves: Sequence[SaveCall], poll: Hook) -> Mapping[str, bytes]:
    """Return the lines that a step saves, by name, call after call.

    Args:
        saves: in the order of the calls.
        poll: called every few seconds.
    """
    lines: dict[str, bytes] = {}
    for call in saves:
        lines[call.name] = lines.get(call.name, b"") + call.lines(poll)
    return lines
