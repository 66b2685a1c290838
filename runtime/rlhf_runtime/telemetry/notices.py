"""Sentences that every display of a run's progress says alike."""

from __future__ import annotations


def resumed_text(step: int) -> str:
    """Workers go on from a checkpoint."""
    return f"going on from the checkpoint of step {step}"


def restart_text(number: int, seconds: float, reason: str, message: str) -> str:
    """Workers are started again, and why."""
    when = f"in {seconds:g} s" if seconds else "at once"
    return f"restart {number} {when}, after {reason}: {message}"
