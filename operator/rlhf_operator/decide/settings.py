"""Times that decisions go by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Seconds, all of them."""

    poll_seconds: float = 5.0
    """From one look at a running driver to the next."""
    progress_seconds: float = 15.0
    """Progress is written at most so often; phase and conditions at once."""
    silent_seconds: float = 60.0
    """A head that has not answered for so long is told of."""
    wait_seconds: float = 30.0
    """From one look at what should send events, to the next: should an event be lost."""
    stop_seconds: float = 180.0
    """How long a driver may take to save and end; then its cluster is taken away."""
    longest_backoff_seconds: float = 600.0
    """The longest wait before a restart."""
    restarts_on_a_cluster: int = 3
    """Restarts in a row without a new checkpoint; then the cluster itself is made anew."""
