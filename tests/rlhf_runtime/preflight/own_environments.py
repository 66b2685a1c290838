"""Environments of a user's own, and jobs with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_api.spec.job import RLHFJobSpec

MODULE = '''
from typing import TypedDict

class Parts(TypedDict):
    right: float
    short: float

class Calculator:
    """Adds numbers."""
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)
    def reward(self) -> float:
        return 1.0

class Graded(Calculator):
    def reward(self) -> Parts:
        return {"right": 1.0, "short": 0.0}

class Silent:
    def look(self) -> str:
        """Look around."""
        return ""

class NoHints:
    def add(self, a, b):
        """Add."""

class NoDocstring:
    def add(self, a: int) -> int:
        return a

class Nothing:
    """No tools."""

def add(a: int) -> str:
    """Add."""
    return ""

def untold(a):
    """Add."""

class Restless:
    """Counts on a clock of its own."""
    def reset(self, **row) -> str:
        return "go"
    def draw(self, most: int) -> str:
        """Draw a number."""
        import random
        return str(random.randrange(10**9))
    def tick(self) -> str:
        """Look at the clock."""
        import time
        return str(time.monotonic_ns())
    def refuse(self, colour: str) -> str:
        """Refuse."""
        raise ValueError("not " + colour)
    def turn_reward(self) -> float:
        return 0.25
    def reward(self) -> float:
        return 0.5

class Wordy(Calculator):
    """Observes a text of a special token."""
    def reset(self, **row) -> str:
        return "<eos>"

class Failing(Calculator):
    def reward(self) -> float:
        raise RuntimeError("my own mistake")
'''


def spec_of(
    place: Path, environment: dict[str, Any], reward: Any = None, **rollout: Any
) -> RLHFJobSpec:
    lengths = {"samplesPerPrompt": 2, "maxPromptTokens": 16, "maxResponseTokens": 600}
    rewards = {} if reward is None else reward
    return RLHFJobSpec.model_validate(
        {
            "algorithm": {"type": "GRPO"},
            "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
            "data": {"train": {"path": f"{place}/rows.jsonl"}},
            "rewards": [{"environment": rewards}],
            "rollout": {**lengths, **rollout, "environment": environment},
            "schedule": {"steps": 1, "promptsPerStep": 2},
        }
    )
