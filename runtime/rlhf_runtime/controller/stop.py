"""A wish to stop, from whoever hears of it to whoever can."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StopRequest:
    """Set by a signal's handler, read by the loop over passes."""

    requested: bool = False
    """Whether the job should stop after the step that it is in, with its state saved."""
    has_state_to_save: bool = False
    """Whether there is state to save: before the first step, a stop is best done at once."""

    def raise_if_requested(self) -> None:
        """Stop now if that is wanted and there is nothing to save.

        A signal's handler raises this itself, but where it interrupts a destructor or a library's
        callback, Python drops the error and goes on.

        Raises:
            KeyboardInterrupt: it is so.
        """
        if self.requested and not self.has_state_to_save:
            raise KeyboardInterrupt
