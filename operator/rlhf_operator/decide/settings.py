"""Times and limits that decisions depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Limits in seconds, unless the name says otherwise."""

    poll_seconds: float = 5.0
    """Between two requests to a running driver."""
    progress_seconds: float = 15.0
    """Minimum between two writes of progress; phase and conditions are written at once."""
    unreachable_seconds: float = 60.0
    """A head without an answer for this long is reported as HeadUnreachable."""
    wait_seconds: float = 30.0
    """Requeue after this time while waiting for an event, in case the event is lost."""
    stop_seconds: float = 180.0
    """Time for a driver to save and end; then its cluster is deleted."""
    max_backoff_seconds: float = 600.0
    """Upper bound of the wait before a restart."""
    refused_seconds: float = 60.0
    """A head that refuses the token for this long is replaced with its cluster."""
    lost_pod_seconds: float = 120.0
    """A pod that still exists this long after its grace period is on a lost node. Nothing waits
    for it: its cluster is replaced."""
    dead_head_seconds: float = 600.0
    """A head without an answer for this long is dead if its kubelet does not reach it either, or
    if other heads do answer. Its cluster is replaced."""
    frozen_report_seconds: float = 1800.0
    """A driver that promises a heartbeat and reports nothing new for this long is frozen."""
    partial_cluster_seconds: float = 3600.0
    """Limit for some pods of a cluster to occupy devices while others cannot start, plus up to
    half as much again. Then all devices are released for a while."""
    restarts_on_a_cluster: int = 3
    """Every n-th of the driver's restarts that count and brought no new checkpoint gets a new
    cluster; this is n."""
