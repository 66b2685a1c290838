"""What executes or records the calls of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.calls import ModelCall


class Backend(Protocol):
    """Executes or records the calls of a step."""

    # Batches are Any: a backend only gets batches that it returned itself, of its own type.

    def run(self, call: ModelCall, batch: Any, auxiliary: Sequence[Any] = ()) -> BatchValue:
        """Run a call; return a batch of the columns that it writes (and carries, if it starts
        rows)."""

    def no_rows(self) -> BatchValue:
        """A batch without rows and columns, for a call that reads none."""

    def pretraining(self) -> BatchValue:
        """The step's rows of data.pretraining."""

    def every(self, region: str, n: int, body: Callable[[], None]) -> None:
        """Run the body in steps whose number is a multiple of n."""

    def repeat(
        self,
        region: str,
        body: Callable[[Any], Any],
        until: Callable[[Any], BatchValue],
        max_rounds: int,
        expected_rounds: float,
    ) -> BatchValue:
        """Collect the body's rows round by round, until the condition `until`, computed over
        all rows so far, is true.

        The body gets the round's prompts. `until` runs a compute call on the rows so far; its batch
        has the one column `enough`, the same in every row.
        """
