"""Scenarios of Megatron's stages, for test_megatron: run on one rank, on two and on four.

Run as `python -m tests.rlhf_runtime.engines.megatron_ranks RANK WORLD_SIZE FOLDER`. The oracle is
Hugging Face's own model: its logits, its gradients and the files that it writes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import param_is_not_tensor_parallel_duplicate
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf_api.mesh import Mesh
from rlhf_runtime.engines.megatron.cpu_patches import run_on_cpu
from rlhf_runtime.engines.megatron.files import save_model
from rlhf_runtime.engines.megatron.head import HeadRequest, to_token_outputs
from rlhf_runtime.engines.megatron.layout import check_mesh_pieces
from rlhf_runtime.engines.megatron.pipeline import forward_backward, infer, wrap_with_gradients
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.megatron.stage_passes import Inputs
from rlhf_runtime.engines.training import ReadLogProbs
from rlhf_runtime.engines.world import World
from rlhf_runtime.numerics import entropy
from rlhf_runtime.reshard.execute import execute
from rlhf_runtime.reshard.gathering import list_pieces
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.slices import TensorSlice

from ..meshes import contexts_of
from ..world_of_processes import Scenario, run_scenarios
from .megatron_cases import ONE, TWO_STAGES, TWO_TENSOR, cases
from .megatron_copies import copies_stay_alike
from .megatron_models import PLAIN, VOCABULARY, WIDE
from .megatron_schedules import (
    models_take_turns_on_their_stages,
    outputs_are_freed_once_sent,
    stages_compute_as_megatrons_schedule,
)
from .megatron_stages import context_of, stage_of, write_once

SHAPES = ((2, 8), (3, 12), (1, 6))
"""Sequences and their lengths of each micro-batch; multiples of two, for sequence parallelism."""


def batches() -> list[Inputs]:
    draw = torch.Generator().manual_seed(1)
    return [Inputs(torch.randint(0, VOCABULARY, shape, generator=draw)) for shape in SHAPES]


def factors() -> list[torch.Tensor]:
    """What each logit counts in the loss, which is their weighted sum."""
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(*shape, VOCABULARY, generator=draw) / 100 for shape in SHAPES]


def hugging_face(place: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()


class Pair(NamedTuple):
    """Two results that should be one. Pairs are compared when a scenario has nothing more to do
    with other ranks: one that fails before would let them wait."""

    what: str
    got: torch.Tensor
    expected: torch.Tensor


def assert_same(*found: list[Pair]) -> None:
    for what, got, expected in (pair for pairs in found for pair in pairs):
        assert got.shape == expected.shape, (what, got.shape, expected.shape)
        difference = float((got - expected).abs().max())
        assert difference < 1e-5, (what, difference)


def outputs_and_gradients_equal_hugging_faces(
    world: World, folder: Path, mesh: Mesh, kind: str, sequence_parallel: bool = False
) -> None:
    place = write_once(world, kind, folder)
    stage = stage_of(place, context_of(world, mesh), sequence_parallel=sequence_parallel)
    assert_same(logits(stage, hugging_face(place)), gradients(stage, hugging_face(place)))


def logits_of(stage: Stage, inputs: list[Inputs]) -> list[torch.Tensor]:
    """Of this rank's tokens, on ranks of the last stage. What is wrong with them is found after all
    stages have met: one that fails alone would let the others wait."""
    found: dict[int, torch.Tensor] = {}

    def keep(number: int, logits: torch.Tensor) -> None:
        found[number] = logits.clone()

    infer(stage, inputs, len(inputs), keep)
    assert list(found) == (list(range(len(inputs))) if stage.parallel.is_last_stage else [])
    return list(found.values())


@torch.no_grad()
def logits(stage: Stage, model: PreTrainedModel) -> list[Pair]:
    """Against the model's, on ranks of the last stage."""
    inputs, own = batches(), stage.own_vocabulary()
    return [
        Pair("logits", found, model(batch.token_ids).logits[..., own.start : own.stop])
        for batch, found in zip(inputs, logits_of(stage, inputs))  # noqa: B905  # maybe none
    ]


def gradients(stage: Stage, model: PreTrainedModel) -> list[Pair]:
    """Against the model's. Replicas have different micro-batches; their gradients are summed."""
    inputs, weights, own = batches(), factors(), stage.own_vocabulary()
    for batch, factor in zip(inputs, weights, strict=True):
        (model(batch.token_ids).logits * factor).sum().backward()
    at, mine = stage.parallel.at, range(len(inputs))
    if at.data_size == 2:
        mine = range(2) if at.data == 0 else range(2, 3)
    trained = wrap_with_gradients(stage)

    def loss(number: int, logits: torch.Tensor) -> torch.Tensor:
        return (logits * weights[mine[number]][..., own.start : own.stop]).sum()

    for _ in range(2):  # the second time must not see the first time's
        forward_backward(trained, [inputs[number] for number in mine], len(mine), loss)
    return gradient_pairs(stage, model)


def gradient_pairs(stage: Stage, model: PreTrainedModel) -> list[Pair]:
    """What has been summed up in this rank's storage, and those parts of the model's gradients."""
    views = stage.views(lambda parameter: parameter.main_grad)
    assert views.keys() == stage.views().keys()
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}
    return [
        Pair(name, gradient, part_of(wanted[name], box))
        for name, parts in views.items()
        for gradient, box in parts
    ]


def part_of(whole: torch.Tensor, box: TensorSlice) -> torch.Tensor:
    return whole.detach()[box.slices_in(TensorSlice.full(tuple(whole.shape)))]


def ranks_hold_every_weight(world: World, folder: Path, mesh: Mesh, kind: str) -> None:
    """As often as they should, and in the model's own storage."""
    place = write_once(world, kind, folder)
    parallel = context_of(world, mesh)
    stage = stage_of(place, parallel)
    pieces = [list_pieces(stage.views())] * world.size
    dist.all_gather_object(pieces, list_pieces(stage.views()))
    group = slice(0, mesh.tensor * mesh.pipeline)
    check_mesh_pieces(stage.architecture, pieces[group], tensor=mesh.tensor, pipeline=mesh.pipeline)
    expected = dict(hugging_face(place).named_parameters())
    for name, parts in stage.views().items():
        for tensor, box in parts:
            assert torch.equal(tensor, part_of(expected[name], box)), name
    held = sum(view.tensor.numel() for parts in stage.views().values() for view in parts)
    padding = sum(
        (p.shape[0] - len(stage.own_vocabulary())) * p.shape[1]
        for p, parameter, _ in stage.mapped_parameters()
        if "vocabulary" in parameter.weights[0].shape
    )
    assert held + padding == sum(parameter.numel() for parameter in stage.parameters())


def models_are_saved_as_they_were(world: World, folder: Path, mesh: Mesh, kind: str) -> None:
    place = write_once(world, kind, folder)
    stage = stage_of(place, context_of(world, mesh))
    save_model(stage, stage.views(), folder / "saved", torch.float32)
    save_model(stage, stage.views(), folder / "parts", torch.float32, file_bytes=100_000)
    save_model(stage, stage.views(), folder / "half", torch.bfloat16)
    dist.barrier()
    reloaded = stage_of(folder / "parts", context_of(world, mesh))
    for one, other in zip(stage.parameters(), reloaded.parameters(), strict=True):
        assert torch.equal(one, other)
    if world.rank == 0:
        file = "model.safetensors"
        assert (folder / "saved" / file).read_bytes() == (place / file).read_bytes()
        original = hugging_face(place)
        half = AutoModelForCausalLM.from_pretrained(folder / "half")
        assert half.dtype is torch.bfloat16 and half.config.use_cache
        assert len(list((folder / "parts").glob("*.safetensors"))) > 3
        again = hugging_face(folder / "parts")
        for name, parameter in original.named_parameters():
            assert torch.equal(again.get_parameter(name), parameter), name
            assert torch.equal(half.get_parameter(name), parameter.bfloat16()), name


def positions_and_masks_are_those_given(world: World, folder: Path) -> None:
    """Two continuations of one beginning, in one sequence; neither sees the other."""
    place = write_once(world, PLAIN, folder)
    tokens = batches()[0].token_ids[:, :8]
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 4, 5]]).expand(2, -1)
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    mask[6:, 4:6] = False
    mask = mask.expand(2, 1, 8, 8)
    model = hugging_face(place)
    with torch.no_grad():
        expected = model(tokens, position_ids=positions, attention_mask=mask).logits
        plain = model(tokens).logits
    assert float((expected - plain).abs().max()) > 1e-3
    pairs = []
    for mesh in (TWO_TENSOR, TWO_STAGES):
        stage = stage_of(place, context_of(world, mesh))
        own = stage.own_vocabulary()
        for found in logits_of(stage, [Inputs(tokens, positions, mask)]):
            pairs.append(Pair("logits", found, expected[..., own.start : own.stop]))
    assert_same(pairs)


def losses_of_log_probs_equal_hugging_faces(
    world: World, folder: Path, mesh: Mesh, sequence_parallel: bool
) -> None:
    """Log-probabilities and entropies from the vocabulary's parts, in a loss of both."""
    place = write_once(world, WIDE, folder)
    stage = stage_of(place, context_of(world, mesh), sequence_parallel=sequence_parallel)
    inputs, model = batches(), hugging_face(place)
    expected, found = [], dict[int, torch.Tensor]()

    def loss(log_probs: torch.Tensor, entropies: torch.Tensor | None) -> torch.Tensor:
        assert entropies is not None
        return (log_probs * torch.linspace(-1, 1, len(log_probs)) - 0.3 * entropies).sum() / 50

    reading = ReadLogProbs(0.9, with_entropy=True, entropy_gradient=True)
    asking = []
    for batch in inputs:
        sequences, longest = batch.token_ids.shape
        logits = model(batch.token_ids).logits[:, :-1].flatten(0, 1)
        expected.append(loss(*entropy.token_log_probs(logits, targets_of(batch), 0.9, True)))
        places = torch.arange(longest * sequences).view(longest, sequences).t()[:, :-1].flatten()
        asking.append(replace(batch, request=HeadRequest(reading, places, targets_of(batch))))
    torch.stack(expected).sum().backward()

    def share(number: int, answer: torch.Tensor) -> torch.Tensor:
        found[number] = loss(*to_token_outputs(answer, reading))
        return found[number]

    forward_backward(wrap_with_gradients(stage), asking, len(asking), share)
    losses = [Pair("loss", found[n].detach(), expected[n].detach()) for n in found]
    assert_same(losses, gradient_pairs(stage, model))


def targets_of(batch: Inputs) -> torch.Tensor:
    return batch.token_ids[:, 1:].flatten()


def roles_with_different_meshes_share_a_process(world: World, folder: Path) -> None:
    """Their forward and backward passes take turns, and nothing of Megatron's is global."""
    place = write_once(world, PLAIN, folder)
    contexts = contexts_of(world, TWO_TENSOR, TWO_STAGES)
    actor, critic = (stage_of(place, parallel) for parallel in contexts.values())
    roles = (actor, critic, actor, critic)
    found = [logits(role, hugging_face(place)) for role in roles]
    found += [gradients(role, hugging_face(place)) for role in roles[:2]]
    assert_same(*found)
    assert not parallel_state.is_initialized()


def weights_go_from_one_mesh_to_another(world: World, folder: Path) -> None:
    """From tensor ranks to stages and back, straight into their storage."""
    place = write_once(world, WIDE, folder)
    contexts = contexts_of(world, TWO_TENSOR, TWO_STAGES)
    cut, staged = (stage_of(place, parallel) for parallel in contexts.values())
    for source, target in ((cut, staged), (staged, cut)):
        for parameter in target.parameters():
            parameter.data.zero_()
        layouts = []
        for stage in (source, target):
            held = [list_pieces(stage.views())] * world.size
            dist.all_gather_object(held, list_pieces(stage.views()))
            layouts.append(Layout(stage.architecture.shapes(), tuple(held)))
        plan = plan_reshard(*layouts)
        execute(plan, world.rank, source.views(), target.views(), world.make_group([0, 1]))
    expected = dict(hugging_face(place).named_parameters())
    for stage in (cut, staged):
        for name, parts in stage.views().items():
            assert all(torch.equal(tensor, part_of(expected[name], box)) for tensor, box in parts)


def frozen_models_compute_the_same(world: World, folder: Path, sequence_parallel: bool) -> None:
    place = write_once(world, PLAIN, folder)
    parallel = context_of(world, TWO_TENSOR)
    stage = stage_of(place, parallel, sequence_parallel=sequence_parallel)
    stage.requires_grad_(False)
    assert_same(logits(stage, hugging_face(place)))
    assert all(parameter.grad is None for parameter in stage.parameters())


def half_precision_computes_alike(world: World, folder: Path, mesh: Mesh) -> None:
    """bfloat16 weights, float32 gradients: as far from float32 as Hugging Face's model is with
    weights like these."""
    place = write_once(world, PLAIN, folder)
    inputs, weights, whole = batches(), factors(), hugging_face(place)
    half = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16).eval()
    for batch, factor in zip(inputs, weights, strict=True):
        for model in (whole, half):
            (model(batch.token_ids).logits.float() * factor).sum().backward()
    stage = stage_of(place, context_of(world, mesh), dtype=torch.bfloat16)
    own = stage.own_vocabulary()
    outputs = logits_of(stage, inputs)

    def loss(number: int, logits: torch.Tensor) -> torch.Tensor:
        return (logits.float() * weights[number][..., own.start : own.stop]).sum()

    forward_backward(wrap_with_gradients(stage), inputs, len(inputs), loss)
    for batch, found in zip(inputs, outputs):  # noqa: B905  # maybe none
        assert found.dtype is torch.bfloat16
        exact, rounded = (model(batch.token_ids).logits.detach() for model in (whole, half))
        part = exact[..., own.start : own.stop]
        assert_as_close(Pair("logits", found, part), rounded - exact)
    rounded = {name: parameter.grad for name, parameter in half.named_parameters()}
    exact = {name: parameter.grad for name, parameter in whole.named_parameters()}
    for pair in gradient_pairs(stage, whole):
        assert pair.got.dtype is torch.float32
        assert_as_close(pair, rounded[pair.what] - exact[pair.what])


def assert_as_close(pair: Pair, usual: torch.Tensor) -> None:
    """A result is as far from what it should be as another one is, in the mean."""
    error = float((pair.got.float() - pair.expected).abs().mean())
    assert error < 1.5 * float(usual.abs().mean()), (pair.what, error)


def tensor_ranks_know_what_they_share(world: World, folder: Path) -> None:
    """What Megatron counts in a gradient's norm on tensor rank 0 only, and everything else on all,
    is each weight once."""
    place = write_once(world, WIDE, folder)
    stage = stage_of(place, context_of(world, TWO_TENSOR))
    counted = sum(
        parameter.numel()
        for parameter in stage.parameters()
        if param_is_not_tensor_parallel_duplicate(parameter, stage.pg_collection.tp)
    )
    total = torch.tensor(counted)
    dist.all_reduce(total)
    hidden, padding = stage.architecture.hidden_size, 320 - VOCABULARY
    assert int(total) == hugging_face(place).num_parameters() + padding * hidden


def stages_are_on_the_device_that_they_compute_on(world: World, folder: Path) -> None:
    """All of what they hold or make, and not only their parameters."""
    place, device = write_once(world, WIDE, folder), torch.device("meta")
    stage = Stage(AutoConfig.from_pretrained(place), replace(context_of(world, ONE), device=device))
    held = [*stage.parameters(), *stage.buffers(), stage.rotary_pos_emb(8)]
    assert {tensor.device for tensor in held} == {device}


def torch_stays_as_it_was(world: World, folder: Path) -> None:
    """Only Megatron sees a torch without a GPU; and a second time nothing more is changed."""
    before = [torch.empty, torch.cuda.current_device]
    mappings = import_module("megatron.core.tensor_parallel.mappings")
    run_on_cpu()
    changed = mappings.torch
    run_on_cpu()
    assert mappings.torch is changed and changed is not torch
    assert before == [torch.empty, torch.cuda.current_device]
    assert changed.empty(2, device=changed.cuda.current_device()).device.type == "cpu"
    assert changed.nn is torch.nn and changed.Tensor is torch.Tensor


def scenarios(size: int) -> dict[str, Scenario]:
    """Those of a world of so many ranks."""
    others = (
        copies_stay_alike,
        models_take_turns_on_their_stages,
        outputs_are_freed_once_sent,
        stages_compute_as_megatrons_schedule,
    )
    checks = globals() | {check.__name__: check for check in others}
    return {
        name: partial(checks[check], **options) for name, (check, options) in cases(size).items()
    }


if __name__ == "__main__":
    world_size = int(sys.argv[2])
    run_scenarios(int(sys.argv[1]), world_size, Path(sys.argv[3]), scenarios(world_size))
