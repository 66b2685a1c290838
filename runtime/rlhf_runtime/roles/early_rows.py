"""Sends responses to the reward host as they end, while others are generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from rlhf_flow.step.columns import EPISODE, RECORD
from rlhf_runtime.calls.ended_rows import EndedRows
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.dataplane.partition import RowSubset
from rlhf_runtime.engines.response_batch import Generated
from rlhf_runtime.hooks import Hook
from rlhf_runtime.roles.sequence_migration import Prompts

# Decode steps between two messages. Counted, as a clock would differ in each run.
SEND_STEPS = 8

SendEnded = Callable[[EndedRows], None]
"""Sends rows to the reward host that will score them, without waiting."""


class EarlyRows:
    """The rows of one call on one engine that have ended so far."""

    def __init__(
        self,
        inputs: CallInputs,
        prompts: Prompts,
        has_ended: Callable[[], NDArray[np.bool_]],
        generated: Callable[[Rows], Generated],
        decode: Callable[[Column], list[str]],
        send: SendEnded | None,
        columns: Callable[[Rows], Mapping[str, Column]] | None = None,
    ) -> None:
        """
        Args:
            inputs: of the call.
            prompts: of the rows.
            has_ended: returns which rows have ended.
            generated: returns the responses of some rows that have ended.
            decode: returns the texts of responses.
            send: sends rows. None: no host scores them early.
            columns: returns the columns of some conversations that have ended. None: there are no
                conversations.
        """
        self._inputs = inputs
        self._prompts = prompts
        self._has_ended = has_ended
        self._generated = generated
        self._columns = columns
        self._decode = decode
        # All ranks of a replica have the same responses.
        is_first = inputs.at.tensor == inputs.at.pipeline == 0
        self._send = send if is_first and inputs.score_calls else None
        self._sent = np.zeros(len(prompts.index.rows), dtype=np.bool_)
        self._num_steps = 0
        # Texts of the rows that were sent.
        self._texts: dict[int, str] = {}

    def after_step(self, tick: Hook) -> Hook:
        """Return a function to call after every decode step.

        Args:
            tick: is called, too.
        """
        if self._send is None:
            return tick

        def count_step() -> None:
            tick()
            self._num_steps += 1
            if self._num_steps % SEND_STEPS == 0:
                self._send_ended()

        return count_step

    def texts(self, rows: Rows, tokens: Column) -> list[str]:
        """Return the texts of responses; those of rows that were sent are not decoded again.

        Args:
            rows: numbers of the rows in the batch.
            tokens: their responses.
        """
        missing = np.array([row not in self._texts for row in rows.tolist()], dtype=np.bool_)
        decoded = iter(self._decode(tokens.take(np.flatnonzero(missing))))
        return [
            next(decoded) if is_missing else self._texts[row]
            for row, is_missing in zip(rows.tolist(), missing.tolist(), strict=True)
        ]

    def _send_ended(self) -> None:
        """Send the rows that have ended since the last message."""
        new = np.flatnonzero(self._has_ended() & ~self._sent)
        if not len(new):
            return
        self._sent[new] = True
        generated = self._generated(new)
        rows = self._prompts.index.rows[new].tolist()
        texts = self._decode(generated.tokens)
        self._texts.update(zip(rows, texts, strict=True))
        inputs = self._inputs
        columns: Mapping[str, Column] = {RECORD: self._prompts.columns[RECORD].take(new)}
        if self._columns is not None:
            columns = self._columns(new)
        ended = EndedRows(
            inputs.score_calls,
            inputs.step,
            inputs.graph,
            inputs.repetition,
            inputs.round,
            None if inputs.subset is not RowSubset.ALL else _span(self._prompts.index.rows),
            tuple(rows),
            tuple(columns[RECORD].texts()),
            tuple(texts),
            tuple(map(bool, generated.finished)),
            tuple(columns[EPISODE].texts()) if EPISODE in columns else (),
        )
        assert self._send is not None
        self._send(ended)


def _span(rows: Rows) -> range | None:
    """Return rows as a range; None if they are not consecutive."""
    span = range(int(rows[0]), int(rows[-1]) + 1)
    return span if len(span) == len(rows) else None
