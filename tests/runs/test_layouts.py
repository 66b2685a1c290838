"""The examples that train and generate in different layouts: tokens and losses of one rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from .layouts import STEPS, LayoutRun, run_example

pytestmark = pytest.mark.ray

LOSSES = ("actor/loss", "actor/gradient_norm", "actor/entropy", "actor/log_prob_difference_mean")


@pytest.mark.parametrize(
    "name",
    # test_placement.py generates on other ranks than it trains on
    ["15", pytest.param("16", marks=pytest.mark.nightly)],
)
def test_layouts_of_four_ranks_give_the_results_of_one_rank(
    scratch: Path, one_rank_run: LayoutRun, name: str
) -> None:
    layout_run = run_example(scratch, name, 4)
    assert len(layout_run.responses) >= STEPS * 8 * 8
    assert layout_run.responses == one_rank_run.responses
    assert layout_run.steps[-1]["throughput/transition_bytes"] > 0
    for got, expected in zip(layout_run.steps, one_rank_run.steps, strict=True):
        for loss in LOSSES:
            assert got[loss] == pytest.approx(expected[loss], rel=1e-4, abs=1e-5), loss
