"""The examples that train and generate in different layouts: tokens and losses of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .cli import run
from .manifests import example
from .records import step_metrics

pytestmark = pytest.mark.ray

STEPS = 3
LOSSES = ("actor/loss", "actor/gradient_norm", "actor/entropy", "actor/log_prob_difference_mean")


class Made(NamedTuple):
    """What a run came to."""

    responses: list[str]
    """Prompt and response of every sample of all passes; a reward host scores them in any order."""
    steps: list[dict[str, float]]
    """Metrics."""


def made(place: Path, name: str, devices: int) -> Made:
    """A few steps of an example. Gradients that are zero but for rounding do not matter under this
    epsilon: layouts round otherwise."""
    responses = place / f"layout-{name}.txt"
    verifier = {"entrypoint": "verifiers:keeps_responses", "parameters": {"file": str(responses)}}
    changes: dict[str, Any] = {
        "models": {"actor": {"training": {"adamEpsilon": 1e-6}}},
        "rewards": [{"name": "digits", "function": verifier}],
        "schedule": {"steps": STEPS},
    }
    manifest = example(name, place / f"layout-{name}.yaml", changes)
    ended = run(manifest, place / f"layout-{name}", "--devices", devices)
    assert ended.code == 0, ended.output
    return Made(sorted(responses.read_text().splitlines()), step_metrics(ended.folder))


@pytest.fixture(scope="module")
def on_one_rank(place: Path) -> Made:
    return made(place, "01", 1)


@pytest.mark.parametrize("name", ["15", "16"])
def test_layouts_of_four_ranks_make_what_one_rank_makes(
    place: Path, on_one_rank: Made, name: str
) -> None:
    found = made(place, name, 4)
    assert len(found.responses) >= STEPS * 8 * 8 and found.responses == on_one_rank.responses
    assert found.steps[-1]["throughput/transition_bytes"] > 0
    for got, wanted in zip(found.steps, on_one_rank.steps, strict=True):
        for loss in LOSSES:
            assert got[loss] == pytest.approx(wanted[loss], rel=1e-4, abs=1e-5), loss
