"""Tokens without a text, and tokens that truncated sampling left out, in every training engine.

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

from ..kept_sets import encode, masked_softmax, random_mask
from .contract_setup import (
    GROUPS,
    NUM_TOKENS,
    Built,
    Setup,
    assert_close,
    assert_same_norm,
    batch,
    hugging_face,
    model_folder,
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


def only_kept_tokens_are_possible(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """For each token another set, beside tokens without a text."""
    place = model_folder(kind, world, folder)
    built = setup.build(place, world, excluded_tokens=TEXTLESS)
    outputs = torch.full((2, NUM_TOKENS), torch.nan)

    def read(found: TokenOutputs, part: MicroBatch) -> None:
        assert found.entropies is not None
        outputs[:, part.tokens] = torch.stack([found.values, found.entropies]).cpu()

    built.engine.infer(truncated_micro_batches(built, np.arange(6), 40), READING, read)
    expected, expected_norm = truncated_outputs_and_norm(place)
    if built.reads:
        predicted = ~expected[0].isnan()
        assert torch.equal(~outputs[0].isnan(), predicted)
        assert_close(outputs[:, predicted], expected[:, predicted], built.precision)
    built.engine.use_optimizer(settings(weight_decay=0.0))
    own = truncated_micro_batches(built, rows_of(built.parallel), 40)
    norm = built.engine.update([WeightedLoss(READING, own, share_of_loss)])
    assert_same_norm(norm / expected_norm, 1.0, built.precision)


def truncated_micro_batches(
    built: Built, rows: NDArray[np.int64], max_tokens: int
) -> list[MicroBatch]:
    """Of every third token nothing is predicted."""
    prompts, responses = text_batch()
    assert responses.lengths is not None
    sets = encode(kept_mask(), torch.tensor(responses.values, dtype=torch.long), responses.lengths)
    parts = pack_micro_batches(
        prompts, responses, GROUPS, built.engine.packing(max_tokens), rows, kept_tokens=sets
    )
    return [part.select(part.tokens % 3 != 0) for part in parts]


def kept_mask() -> torch.Tensor:
    tokens = torch.tensor(text_batch()[1].values, dtype=torch.long)
    return random_mask(tokens, VOCABULARY, seed=4, without=TEXTLESS_IDS)


def truncated_outputs_and_norm(folder: Path) -> tuple[torch.Tensor, float]:
    """As `expected_outputs_and_norm`, over the kept tokens, without every third token."""
    model, mask, at = hugging_face(folder), kept_mask(), 0
    found = []
    for prompt, response in zip(*(column.runs() for column in text_batch()), strict=True):
        tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
        logits = model(tokens[None]).logits[0, len(prompt) - 1 : -1] / 0.7
        own = mask[at : at + len(response)]
        found.append(torch.stack(masked_softmax(logits, own, tokens[len(prompt) :])))
        at += len(response)
    outputs = torch.cat(found, dim=1)
    predicted = torch.arange(NUM_TOKENS) % 3 != 0
    share_of_loss(TokenOutputs(*outputs[:, predicted]), None).backward()  # type: ignore[arg-type]
    squares = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
    return outputs.detach().masked_fill(~predicted, torch.nan), norm_of(squares)


def norm_of(squares: list[torch.Tensor]) -> float:
    return float(torch.stack(squares).sum().sqrt())


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
    return outputs.detach(), norm_of(squares)
