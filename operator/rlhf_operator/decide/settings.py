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
    refused_seconds: float = 60.0
    """A head that has not taken the token for so long never will: its cluster is made anew."""
    lost_pod_seconds: float = 120.0
    """A pod that is there so long after the end of its grace period is on a lost node. Nothing
    waits for it any more: what it belonged to is made anew."""
    dead_head_seconds: float = 600.0
    """A head that has not answered for so long is dead, where its own kubelet does not reach it
    either, or other heads do answer: its cluster is made anew."""
    frozen_report_seconds: float = 1800.0
    """A driver that promises a heartbeat and has told nothing new for so long is frozen."""
    room_seconds: float = 3600.0
    """So long some pods of a cluster may hold devices while others are not there, or up to half as
    long again; then all are given back for a while."""
    restarts_on_a_cluster: int = 3
    """Restarts in a row without a new checkpoint; then the cluster itself is made anew."""
