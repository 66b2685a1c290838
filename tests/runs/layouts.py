"""An example in some layout: all responses that it sampled, and its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from .cli import Finished, run
from .manifests import example
from .records import step_metrics

STEPS = 3


class Made(NamedTuple):
    """Output of a run."""

    finished: Finished
    responses: list[str]
    """Prompt and response of every sample, sorted: reward hosts score in any order."""
    steps: list[dict[str, float]]
    """Metrics."""


def run_example(place: Path, name: str, devices: int, **environment: str) -> Made:
    """Run a few steps of an example.

    Layouts round gradients differently. Where a gradient is zero but for rounding, Adam would turn
    that into a whole update: this epsilon keeps it small.
    """
    folder = place / f"layout-{name}"
    responses = folder.with_suffix(".txt")
    verifier = {"entrypoint": "verifiers:keeps_responses", "parameters": {"file": str(responses)}}
    changes: dict[str, Any] = {
        "models": {"actor": {"training": {"adamEpsilon": 1e-6}}},
        "rewards": [{"name": "digits", "function": verifier}],
        "schedule": {"steps": STEPS},
    }
    manifest = example(name, folder.with_suffix(".yaml"), changes)
    ended = run(manifest, folder, "--devices", devices, **environment)
    assert ended.code == 0, ended.output
    return Made(ended, sorted(responses.read_text().splitlines()), step_metrics(ended.folder))
