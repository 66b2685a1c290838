"""A request to stop, from a signal handler to the training loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StopRequest:
    """Set by a signal handler, read by the loop over passes."""

    requested: bool = False
    """True if the job should stop after the current step, with its state saved."""
    has_state_to_save: bool = False
    """True once there is state to save; before the first step a stop is immediate."""

    def raise_if_requested(self) -> None:
        """Stop now if requested and there is no state to save.

        Raises:
            KeyboardInterrupt: a stop is requested.
        """
        # The signal handler raises this, too. But in a destructor or a library's callback, Python
        # drops that exception.
        if self.requested and not self.has_state_to_save:
            raise KeyboardInterrupt
