"""Tokens without a text, in every training engine.

The oracle is Hugging Face's model with a softmax over the other tokens.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.packing import MicroBatch, pack_micro_batches
from rlhf_runtime.engines.training import ReadLogProbs, TokenOutputs, WeightedLoss
from rlhf_runtime.engines.world import World

from .contract_setup import (
    GROUPS,
    NUM_TOKENS,
    Built,
    Setup,
    assert_close,
    assert_same_norm,
    batch,
    hugging_face,
    rows_of,
    settings,
    whole_weights,
)
from .tiny_models import PADDING, TEXTLESS, TEXTLESS_IDS, VOCABULARY, write_model

READING = ReadLogProbs(0.7, with_entropy=True, entropy_gradient=True)
WITH_TEXT = [token for token in range(VOCABULARY) if token not in TEXTLESS_IDS]


def excluded_tokens_are_impossible(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """Their logits are the highest, but they change neither outputs nor gradients."""
    place = folder / f"{kind}, textless tokens first"
    if world.rank == 0:
        write_model(kind, place, favoured=TEXTLESS_IDS)
    dist.barrier()
    built = setup.build(place, world, excluded_tokens=TEXTLESS)
    outputs = torch.full((2, NUM_TOKENS), torch.nan)

    def read(found: TokenOutputs, part: MicroBatch) -> None:
        assert found.entropies is not None
        outputs[:, part.tokens] = torch.stack([found.values, found.entropies]).cpu()

    built.engine.infer(micro_batches(built, np.arange(6)), READING, read)
    before = whole_weights(built)
    built.engine.use_optimizer(settings(weight_decay=0.0))
    own = micro_batches(built, rows_of(built.parallel))
    norm = built.engine.update([WeightedLoss(READING, own, share_of_loss)])
    after = whole_weights(built)
    expected, expected_norm = expected_outputs_and_norm(place)
    if built.reads:
        assert_close(outputs, expected)
    assert_same_norm(norm / expected_norm, 1.0)
    head = next(name for name in ("lm_head.weight", "model.embed_tokens.weight") if name in before)
    moved = (after[head] != before[head]).any(dim=1)
    assert moved[WITH_TEXT].all() and not moved[TEXTLESS_IDS].any()


def text_batch() -> tuple[Column, Column]:
    """Prompts and responses without textless tokens."""
    columns = batch()
    for column in columns:
        column.values[np.isin(column.values, TEXTLESS_IDS)] = PADDING
    return columns


def micro_batches(built: Built, rows: NDArray[np.int64]) -> list[MicroBatch]:
    packing = replace(built.engine.packing(40), share_prompts=False)
    return pack_micro_batches(*text_batch(), GROUPS, packing, rows)


def share_of_loss(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
    assert outputs.entropies is not None
    return -(outputs.values + 0.3 * outputs.entropies).sum() / NUM_TOKENS


def expected_outputs_and_norm(folder: Path) -> tuple[torch.Tensor, float]:
    """Log-probabilities and entropies of all response tokens, and the norm of the gradient."""
    model = hugging_face(folder)
    log_probs, entropies = [], []
    for prompt, response in zip(*(column.runs() for column in text_batch()), strict=True):
        tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
        logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1]
        highest = logits[:, TEXTLESS_IDS].amax(dim=1)
        assert torch.equal(highest, logits.amax(dim=1)), "without a text"
        possible = (logits[:, WITH_TEXT] / 0.7).log_softmax(dim=1)
        positions = torch.tensor([WITH_TEXT.index(token) for token in response])
        log_probs.append(possible.gather(1, positions[:, None])[:, 0])
        entropies.append(-(possible.exp() * possible).sum(dim=1))
    outputs = torch.stack([torch.cat(log_probs), torch.cat(entropies)])
    share_of_loss(TokenOutputs(*outputs), None).backward()  # type: ignore[arg-type]
    squares = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
    return outputs.detach(), float(torch.stack(squares).sum().sqrt())
