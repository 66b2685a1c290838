"""What a preflight has found."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_api.gathering import Gathered


@dataclass
class Findings:
    """Errors, and what else somebody may want to know."""

    gathered: Gathered = field(default_factory=Gathered)
    """What has to be mended first."""
    facts: list[str] = field(default_factory=list)
    """What was found, one sentence each."""
    unchecked: list[str] = field(default_factory=list)
    """What is left to workers, and why, one sentence each."""
