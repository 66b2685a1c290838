"""Models that are made of checkpoints, with every training engine: the oracle is what it saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.checkpoint.saver import Saver
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import TokenOutputs, WeightedLoss
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.saved_models import export_model, saved_models
from rlhf_runtime.roles.saving import state_of

from .contract_setup import (
    NUM_TOKENS,
    SCALAR,
    Built,
    Setup,
    mine,
    model_folder,
    settings,
)
from .tiny_models import write_model

SMALL_FILE = 200 << 10
"""So that the model is in several files."""


def a_checkpoint_is_exported_as_the_engine_saves(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    """The policy and a critic, from one checkpoint, in both formats; and in several files."""
    place = model_folder(kind, world, folder)
    actor, critic = (setup.build(place, world, value_head=head) for head in (False, True))
    for built in (actor, critic):
        built.engine.use_optimizer(settings(learning_rate=3e-3))
    actor.train(max_tokens=1000)
    critic.engine.update([WeightedLoss(SCALAR, mine(critic, 1000), distance)])
    engines = {"actor": actor.engine, "critic": critic.engine}
    for role, engine in engines.items():
        for dtype in (torch.float32, torch.bfloat16):
            engine.save(folder / f"{role}-{dtype}", dtype)
    address = saved(world, folder, {"actor": actor, "critic": critic})
    if world.rank == 0:
        check_exports(address, place, folder)
    dist.barrier()


def settings_of_sampling_that_transformers_refuses_to_write_are_kept(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    """A temperature beside greedy decoding, in either file of the source."""
    odd = {"temperature": 0.9, "top_p": 0.6}
    for number, file in enumerate(("generation_config.json", "config.json")):
        source = folder / f"odd-{number}"
        if world.rank == 0:
            write_model(kind, source)
            (source / "generation_config.json").unlink(missing_ok=True)
            content = json.loads((source / file).read_text()) if number else {"eos_token_id": 1}
            (source / file).write_text(json.dumps(content | odd))
        dist.barrier()
        built = setup.build(source, world)
        built.engine.use_optimizer(settings())
        built.engine.save(folder / f"own-{number}", torch.float32)
        address = saved(world, folder / f"checkpoint-{number}", {"actor": built})
        if world.rank == 0:
            (folder / f"exported-{number}").mkdir()
            (model,) = saved_models(address).values()
            export_model(model, source, folder / f"exported-{number}", torch.float32)
            for out in (folder / f"own-{number}", folder / f"exported-{number}"):
                AutoModelForCausalLM.from_pretrained(out)
                if number == 0:
                    texts = {(each / file).read_bytes() for each in (out, source)}
                    assert len(texts) == 1
        dist.barrier()


def distance(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
    """From a value of one."""
    return (outputs.values - 1.0).square().sum() / NUM_TOKENS


def saved(world: World, folder: Path, roles: dict[str, Built]) -> str:
    """The address of a checkpoint. Collective."""
    store, saver = CheckpointStore(str(folder / "saved")), Saver(world)
    addresses: list[Any] = [store.begin(3) if world.rank == 0 else ""]
    dist.broadcast_object_list(addresses, 0)
    engines = {role: built.engine for role, built in roles.items()}
    saver.begin(state_of(engines, {}, world), f"{addresses[0]}/pool")
    files: list[Any] = [None] * world.size
    dist.all_gather_object(files, saver.finish())
    if world.rank == 0:
        named = {f"pool/{name}": file for own in files for name, file in own.items()}
        return store.commit(CheckpointRecord(3, world.size, {}, files=named)).address
    return ""


def check_exports(address: str, source: Path, folder: Path) -> None:
    found = saved_models(address)
    assert list(found) == ["actor", "critic"] and all(each.is_trained for each in found.values())
    for role, model in found.items():
        for dtype in (torch.float32, torch.bfloat16):
            out, own = folder / f"{role}-{dtype}-exported", folder / f"{role}-{dtype}"
            out.mkdir()
            export_model(model, source, out, dtype)
            weights, expected = (load_file(each / "model.safetensors") for each in (out, own))
            assert weights.keys() == expected.keys()
            for name, tensor in expected.items():
                assert weights[name].dtype is dtype and torch.equal(weights[name], tensor), name
            assert config_of(out) == config_of(own)
        check_several_files(role, model, source, folder)


def check_several_files(role: str, model: Any, source: Path, folder: Path) -> None:
    out = folder / f"{role}-in-files"
    out.mkdir()
    export_model(model, source, out, torch.float32, SMALL_FILE)
    assert len(list(out.glob("model-*-of-*.safetensors"))) > 1
    scalar = role == "critic"
    kind = AutoModelForSequenceClassification if scalar else AutoModelForCausalLM
    one, several = (
        kind.from_pretrained(each, output_loading_info=True)
        for each in (folder / f"{role}-{torch.float32}", out)
    )
    assert not several[1]["missing_keys"] and not several[1]["unexpected_keys"]
    expected = dict(one[0].named_parameters())
    for name, tensor in several[0].named_parameters():
        assert torch.equal(tensor, expected[name]), name


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config
