"""What every training engine reads of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import (
    ReadLogProbs,
    TokenOutputs,
)
from rlhf_runtime.engines.world import World

from .contract_setup import (
    NUM_TOKENS,
    Built,
    Setup,
    assert_close,
    expected_log_probs,
    fsdp_alone,
    log_probs_of,
    model_folder,
    pieces,
)


def outputs_equal_hugging_face(
    world: World, folder: Path, setup: Setup, kind: str, shares: bool = True
) -> None:
    place = model_folder(kind, world, folder)
    check_outputs(setup.build(place, world, trained=False), place, shares)


def check_outputs(built: Built, place: Path, shares: bool = True) -> None:
    packing = built.engine.packing(1)
    assert packing.share_prompts is shares, "where all tokens see everything before them"
    expected = expected_log_probs(place)
    for share in (False, True):
        for max_tokens in (1, 40, 1000):  # each sequence alone, some together, all together
            got = log_probs_of(built, max_tokens, share)
            assert_close(got, expected, built.precision) if built.reads else assert_nothing_read(
                got
            )


def assert_nothing_read(got: torch.Tensor) -> None:
    assert got.isnan().all(), "only the last stage has a head"


def temperature_and_entropy_are_those_asked_for(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    place = model_folder(kind, world, folder)
    reading = ReadLogProbs(0.7, with_entropy=True)
    made, oracle = setup.build(place, world), fsdp_alone(place, world)
    found: list[torch.Tensor] = []
    for built in (made, oracle):
        got = torch.zeros(2, NUM_TOKENS)

        def read(outputs: TokenOutputs, part: MicroBatch, got: torch.Tensor = got) -> None:
            assert outputs.entropies is not None
            got[:, part.tokens] = torch.stack([outputs.values, outputs.entropies]).cpu()

        built.engine.infer(pieces(built, np.arange(6), 40), reading, read)
        found.append(got)
    if made.reads:
        spread = float(found[1][0].std())  # of log-probabilities: entropies differ less
        assert_close(*found, made.precision, spread)
