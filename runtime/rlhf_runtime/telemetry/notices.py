"""Texts that all progress displays share."""

from __future__ import annotations


def resumed_text(step: int) -> str:
    """The text about workers that resume from a checkpoint."""
    return f"going on from the checkpoint of step {step}"


def restart_text(number: int, seconds: float, reason: str, message: str) -> str:
    """The text about a restart of the workers and its cause."""
    when = f"in {seconds:g} s" if seconds else "at once"
    return f"restart {number} {when}, after {reason}: {message}"
