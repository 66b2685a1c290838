"""The examples that train and generate in different layouts: tokens and losses of one rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from .layouts import STEPS, Made, run_example

pytestmark = pytest.mark.ray

LOSSES = ("actor/loss", "actor/gradient_norm", "actor/entropy", "actor/log_prob_difference_mean")


@pytest.mark.parametrize(
    "name",
    # test_placement.py generates on other ranks than it trains on
    ["15", pytest.param("16", marks=pytest.mark.nightly)],
)
def test_layouts_of_four_ranks_make_what_one_rank_makes(
    place: Path, made_on_one_rank: Made, name: str
) -> None:
    made = run_example(place, name, 4)
    assert len(made.responses) >= STEPS * 8 * 8
    assert made.responses == made_on_one_rank.responses
    assert made.steps[-1]["throughput/transition_bytes"] > 0
    for got, wanted in zip(made.steps, made_on_one_rank.steps, strict=True):
        for loss in LOSSES:
            assert got[loss] == pytest.approx(wanted[loss], rel=1e-4, abs=1e-5), loss
