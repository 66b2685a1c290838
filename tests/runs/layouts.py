"""Runs of an example in some layout: sampled responses and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from .cli import Finished, run
from .manifests import example
from .records import step_metrics

STEPS = 3


class LayoutRun(NamedTuple):
    """Output of a run."""

    finished: Finished
    responses: list[str]
    """Prompt and response of every sample, sorted."""
    steps: list[dict[str, float]]
    """Metrics of training steps."""


def run_example(scratch: Path, name: str, devices: int, **environment: str) -> LayoutRun:
    """Run a few steps of an example."""
    folder = scratch / f"layout-{name}"
    responses = folder.with_suffix(".txt")
    verifier = {"entrypoint": "verifiers:keeps_responses", "parameters": {"file": str(responses)}}
    changes: dict[str, Any] = {
        # Layouts round gradients differently. Where a gradient is zero but for rounding, Adam would
        # make a full update of it; this epsilon keeps it small.
        "models": {"actor": {"training": {"adamEpsilon": 1e-6}}},
        "rewards": [{"name": "digits", "function": verifier}],
        "schedule": {"steps": STEPS},
    }
    manifest = example(name, folder.with_suffix(".yaml"), changes)
    ended = run(manifest, folder, "--devices", devices, **environment)
    assert ended.code == 0, ended.output
    # Sorted: reward hosts score in any order.
    return LayoutRun(ended, sorted(responses.read_text().splitlines()), step_metrics(ended.folder))
