"""Heads, files and copies of models, with every training engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import (
    TokenOutputs,
    WeightedLoss,
)
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import WrongHead

from ..meshes import alone
from .contract_setup import (
    NUM_TOKENS,
    SCALAR,
    Built,
    Setup,
    assert_close,
    assert_same_weights,
    batch,
    expected_log_probs,
    log_probs_of,
    mine,
    model_folder,
    rows_of,
    settings,
    whole_weights,
)


def a_value_head_starts_at_zero_and_learns(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    """As FSDP's does on one rank."""
    place = model_folder(kind, world, folder)
    seen: list[torch.Tensor] = []

    def squared_error(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
        seen.append(outputs.values.detach().clone())
        return (outputs.values - 1.0).square().sum() / NUM_TOKENS

    made = setup.build(place, world, value_head=True)
    oracle = Built(FsdpEngine(place, alone(world), torch.float32, value_head=True), alone(world))
    for built in (made, oracle):
        built.engine.use_optimizer(settings(learning_rate=3e-3))
    for number in range(6):
        terms = [[WeightedLoss(SCALAR, mine(b, 1000), squared_error)] for b in (made, oracle)]
        seen.clear()
        norm = made.engine.update(terms[0])
        assert number or all((values == 0).all() for values in seen)
        expected = oracle.engine.update(terms[1])
        assert abs(norm - expected) < 1e-4 * max(1.0, expected), (number, norm, expected)
    seen.clear()
    oracle.engine.update(terms[1])
    distance = sum(float((values - 1.0).square().sum()) for values in seen)
    assert distance < 0.9 * NUM_TOKENS, distance


def saved_models_load_elsewhere(world: World, folder: Path, setup: Setup, kind: str) -> None:
    place = model_folder(kind, world, folder)
    check_saved_models(setup.build(place, world), folder)


def check_saved_models(built: Built, folder: Path) -> None:
    built.engine.use_optimizer(settings())
    built.train(max_tokens=1000)
    trained = whole_weights(built)
    for dtype in (torch.float32, torch.bfloat16):
        target = folder / f"saved-{dtype}"
        built.engine.save(target, dtype)
        dist.barrier(built.parallel.group)
        loaded = AutoModelForCausalLM.from_pretrained(target)
        assert loaded.dtype is dtype and loaded.config.use_cache
        found = dict(loaded.named_parameters())
        assert found.keys() == trained.keys()
        for name, tensor in trained.items():
            assert torch.equal(found[name].detach(), tensor.to(dtype)), name
    expected = expected_log_probs(folder / f"saved-{torch.float32}")
    got = log_probs_of(built)
    if built.reads:
        assert_close(got, expected, built.precision)


def reward_models_load_elsewhere(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """As a classifier of one label, whose score is that of the last token; here, too."""
    place = model_folder(kind, world, folder)
    built = setup.build(place, world, value_head=True)
    built.engine.use_optimizer(settings(learning_rate=3e-3))

    def distance(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
        return (outputs.values - 1.0).square().sum() / NUM_TOKENS

    for _ in range(3):
        built.engine.update([WeightedLoss(SCALAR, mine(built, 1000), distance)])
    target = folder / f"saved-{kind}-classifier"
    built.engine.save(target, torch.float32)
    dist.barrier()
    loaded, info = AutoModelForSequenceClassification.from_pretrained(
        target, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config.num_labels == 1
    again = setup.build(target, world, value_head=True)
    assert_same_weights(again, built)
    check_scores(again, loaded.eval())
    with pytest.raises(WrongHead, match="without an output over the vocabulary.*ForSequenceCl"):
        setup.build(target, world)
    with pytest.raises(WrongHead, match="gives no score.*ForCausalLM, allowed a sequence class"):
        setup.build(place, world, value_head=True, needs_head=True)
    setup.build(target, world, value_head=True, needs_head=True)


def check_scores(built: Built, classifier: PreTrainedModel) -> None:
    """Against those of Hugging Face's classifier, row by row."""
    classifier.config.pad_token_id = None  # else a row that ends in it is scored before it
    scores: dict[int, float] = {}

    def read(outputs: TokenOutputs, part: MicroBatch) -> None:
        scores.update(zip(part.rows.tolist(), outputs.values.tolist(), strict=True))

    for max_tokens in (1, 1000):
        parts = [replace(part, predictors=part.ends) for part in mine(built, max_tokens)]
        built.engine.infer(parts, SCALAR, read)
    rows = rows_of(built.parallel).tolist() if built.reads else []
    assert sorted(scores) == rows
    prompts, responses = batch()
    for row in rows:
        tokens = np.concatenate([prompts.runs()[row], responses.runs()[row]])
        with torch.no_grad():
            expected = float(classifier(torch.tensor(tokens, dtype=torch.long)[None]).logits)
        assert abs(expected - scores[row]) < 1e-5 and abs(expected) > 1e-3, (row, expected)


def a_critic_takes_the_actors_trunk_only(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    """By a copy on the same ranks, and by a saved model."""
    place = model_folder(kind, world, folder)
    actor = setup.build(place, world)
    copied, loaded = (setup.build(place, world, value_head=True) for _ in range(2))
    actor.engine.use_optimizer(settings())
    actor.train(max_tokens=1000)
    copied.engine.copy_weights_from(actor.engine)
    actor.engine.save(folder / "actor", torch.float32)
    dist.barrier()
    loaded.engine.load_weights(folder / "actor")
    trained = whole_weights(actor)
    for taken in (whole_weights(copied), whole_weights(loaded)):
        head = {name for name in taken if taken[name].shape[0] == 1}
        assert head and all((taken[name] == 0).all() for name in head)
        for name in taken.keys() - head:
            assert torch.equal(taken[name], trained[name]), name
    assert copied.engine.version == loaded.engine.version == 1


def a_whole_copy_is_of_models_that_are_alike(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    place = model_folder(kind, world, folder)
    actor, reference = setup.build(place, world), setup.build(place, world, trained=False)
    actor.engine.use_optimizer(settings())
    actor.train(max_tokens=1000)
    before = reference.engine.version
    reference.engine.copy_weights_from(actor.engine, entirely=True)
    copied = whole_weights(reference)
    assert all(torch.equal(copied[name], value) for name, value in whole_weights(actor).items())
    assert reference.engine.version == before + 1, "a generation engine sees that it is new"
    actor.train(max_tokens=1000)
    changed = whole_weights(actor)
    assert any(not torch.equal(copied[name], value) for name, value in changed.items())
    kept = whole_weights(reference)
    assert all(torch.equal(copied[name], value) for name, value in kept.items())
    critic = setup.build(place, world, value_head=True)
    with pytest.raises(UnsupportedModel, match="models that differ: got .* of shape"):
        critic.engine.copy_weights_from(actor.engine, entirely=True)
