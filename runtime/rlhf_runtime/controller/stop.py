"""A wish to stop, from whoever hears of it to whoever can."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StopRequest:
    """Set by a signal's handler, read by the loop over passes."""

    wanted: bool = False
    """Whether the job should stop after the step that it is in, with its state saved."""
    worth_waiting: bool = False
    """Whether there is state to save: before the first step, a stop is best done at once."""
