"""Scenarios of FSDP, for test_fsdp: run on one rank or on two.

Run as `python -m tests.rlhf_runtime.engines.fsdp_ranks RANK WORLD_SIZE FOLDER`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete, WrongHead

from ...depth import sample
from ..meshes import mesh_of
from ..world_of_processes import Scenario, run_scenarios
from .contract_models import reward_models_load_elsewhere
from .contract_setup import LANGUAGE, Setup, log_probs_of, mine, model_folder, settings
from .contract_updates import updates_are_those_of_plain_torch
from .tiny_models import MODELS, write_classifier, write_model
from .training_contract import IN_HALF_PRECISION, ONCE, PER_MODEL

LOGITS_CHANGED = ("granite", "gemma2")
"""Models that change what their output projection computes."""


def local_weights(engine: TrainingEngine) -> list[torch.Tensor]:
    """This rank's own storage of every weight, by name."""
    return [view.tensor for _, views in sorted(engine.views().items()) for view in views]


def frozen_models_keep_no_gradients(world: World, folder: Path, setup: Setup) -> None:
    built = setup.build(model_folder("llama", world, folder), world, trained=False)
    built.engine.infer(mine(built, 40), LANGUAGE, lambda outputs, part: None)
    assert isinstance(built.engine, FsdpEngine)
    assert all(p.grad is None and not p.requires_grad for p in built.engine.module.parameters())


def frozen_models_are_kept_in_the_format_they_compute_in(
    world: World, folder: Path, setup: Setup
) -> None:
    place = model_folder("tied", world, folder)
    trained, frozen = (
        setup.build(place, world, torch.bfloat16, trained=trained) for trained in (True, False)
    )
    assert {tensor.dtype for tensor in local_weights(trained.engine)} == {torch.float32}
    assert {tensor.dtype for tensor in local_weights(frozen.engine)} == {torch.bfloat16}
    expected = log_probs_of(trained)
    assert torch.equal(log_probs_of(frozen), expected), "the same numbers, bit by bit"
    trained.engine.use_optimizer(settings())
    trained.train(max_tokens=1000)
    frozen.engine.copy_weights_from(trained.engine, entirely=True)
    changed = log_probs_of(trained)
    assert not torch.equal(changed, expected)
    assert torch.equal(log_probs_of(frozen), changed)


def a_reward_model_without_its_head_is_refused(world: World, folder: Path, setup: Setup) -> None:
    place = folder / "headless"
    if world.rank > 0:
        return  # only the first rank reads
    write_classifier("qwen2", place)
    tensors = load_file(place / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    with pytest.raises(WrongHead, match=r"without score\.weight"):
        setup.build(place, world, value_head=True)


def a_folder_of_another_model_is_refused(world: World, folder: Path, setup: Setup) -> None:
    """Rather than completed by weights at random."""
    if world.rank > 0:
        return  # only the first rank reads
    place = folder / "changed"
    write_model("llama", place)
    file, layer = place / "model.safetensors", "model.layers.1.self_attn"
    whole = load_file(file)
    query = f"{layer}.q_proj.weight"
    for changes, error, text in (
        ({query: None}, ModelIncomplete, rf"changed without {re.escape(query)} of \[.*; copy"),
        ({query: whole[query][:, 1:]}, UnsupportedModel, "q_proj.weight of .*allowed"),
        ({f"{layer}.q_norm.weight": torch.ones(4)}, UnsupportedModel, "no layer of the.*q_norm"),
    ):
        changed = {name: each for name, each in (whole | changes).items() if each is not None}
        save_file({n: each.contiguous() for n, each in changed.items()}, file, {"format": "pt"})
        with pytest.raises(error, match=text):
            setup.build(place, world)
    headless = {name: each for name, each in whole.items() if name != "lm_head.weight"}
    save_file(headless, file, {"format": "pt"})
    with pytest.raises(ModelIncomplete, match=r"without lm_head\.weight"):
        setup.build(place, world)
    if world.size == 1:
        setup.build(place, world, value_head=True)


def an_output_beside_the_embedding_that_it_should_be(
    world: World, folder: Path, setup: Setup
) -> None:
    """Is refused where it is another one, be it of a kind of model that the planner knows."""
    if world.rank > 0:
        return  # only the first rank reads
    for kind in ("tied", "granite"):
        place = folder / kind
        write_model(kind, place)
        file, config = place / "model.safetensors", place / "config.json"
        config.write_text(
            json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": True})
        )
        tensors = load_file(file)
        embedding = tensors["model.embed_tokens.weight"]
        for output, text in (
            (embedding[:100], rf"got lm_head.weight of \[100, .* in {place}, allowed \[300, 128\]"),
            (embedding + 1, f"lm_head.weight with other values than the embedding in {place}"),
        ):
            save_file(tensors | {"lm_head.weight": output.clone()}, file, {"format": "pt"})
            with pytest.raises(UnsupportedModel, match=text):
                setup.build(place, world)
        save_file(tensors | {"lm_head.weight": embedding.clone()}, file, {"format": "pt"})
        if world.size == 1:
            assert "lm_head.weight" not in setup.build(place, world).engine.views()


OWN: dict[str, Callable[..., None]] = {
    "frozen models keep no gradients": frozen_models_keep_no_gradients,
    "frozen models are kept in the format they compute in": (
        frozen_models_are_kept_in_the_format_they_compute_in
    ),
    "a folder of another model is refused": a_folder_of_another_model_is_refused,
    "an output beside the embedding that it should be": (
        an_output_beside_the_embedding_that_it_should_be
    ),
    "a reward model without its head is refused": a_reward_model_without_its_head_is_refused,
}


def scenarios(size: int) -> dict[str, Scenario]:
    """Those of a world of so many ranks: what holds for any model is tried on two ranks, and every
    second one of it on one rank, too."""
    setup = Setup(FsdpEngine, mesh_of(0, size))
    found: dict[str, Callable[..., None]] = {
        f"{name} ({kind})": partial(scenario, kind=kind)
        for number, (name, scenario) in enumerate(PER_MODEL.items())
        for kind in sample(number + size, tuple(MODELS), 1)  # worlds have different models
    }
    of_one = ONCE | IN_HALF_PRECISION
    usual = len(of_one) if size > 1 else len(of_one) // 2
    found |= {name: partial(of_one[name], kind="llama") for name in sample(0, [*of_one], usual)}
    for kind in LOGITS_CHANGED:
        outputs, saved = "outputs equal Hugging Face's", "saved models load elsewhere"
        shares = kind != "gemma2"
        found[f"{outputs} ({kind})"] = partial(PER_MODEL[outputs], kind=kind, shares=shares)
        found[f"{saved} ({kind})"] = partial(PER_MODEL[saved], kind=kind)
    for name in ("excluded tokens are impossible", "only kept tokens are possible"):
        found |= {f"{name} ({kind})": partial(ONCE[name], kind=kind) for kind in LOGITS_CHANGED}
    exported = "a checkpoint is exported as the engine saves"
    found[f"{exported} (gemma2)"] = partial(ONCE[exported], kind="gemma2")
    found["reward models load elsewhere (gemma2)"] = partial(
        reward_models_load_elsewhere, kind="gemma2"
    )
    found["updates are those of plain torch (granite)"] = partial(
        updates_are_those_of_plain_torch, kind="granite"
    )
    return {name: partial(scenario, setup=setup) for name, scenario in (found | OWN).items()}


if __name__ == "__main__":
    world_size = int(sys.argv[2])
    run_scenarios(int(sys.argv[1]), world_size, Path(sys.argv[3]), scenarios(world_size))
