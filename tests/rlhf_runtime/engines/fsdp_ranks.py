"""Scenarios of the training engine, for test_fsdp: run on one rank or on two.

Run as `python -m tests.rlhf_runtime.engines.fsdp_ranks RANK WORLD_SIZE FOLDER`. Oracles are Hugging
Face's own forward pass, plain torch on the full batch, and an engine in a world of one.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from rlhf_api.spec.models import LearningRateDecay
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, cut
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import (
    Loss,
    LossTerm,
    ReadLogProbs,
    ReadValues,
    TokenOutputs,
)
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import WrongHead

from ..meshes import alone, parallel_of
from ..world_of_processes import Scenario, run_scenarios
from .tiny_models import MODELS, ragged, write_classifier, write_model

PROMPT_LENGTHS = [30, 1, 9]
RESPONSE_LENGTHS = [4, 11, 1, 6, 2, 8]
GROUPS = np.array([0, 0, 0, 1, 2, 2])
"""Which prompt each response answers."""
NUM_TOKENS = sum(RESPONSE_LENGTHS)
LANGUAGE, SCALAR = ReadLogProbs(), ReadValues()


def settings(**changes: object) -> OptimizerSettings:
    """An optimizer whose epsilon keeps gradients that are zero but for rounding from mattering."""
    given: dict[str, object] = {
        "learning_rate": 1e-3,
        "beta1": 0.9,
        "beta2": 0.95,
        "epsilon": 1e-5,
        "weight_decay": 0.01,
        "gradient_clip": 1.0,
        "decay": LearningRateDecay.NONE,
        "warmup_updates": 0,
        "total_updates": 10,
    }
    return OptimizerSettings(**(given | changes))  # type: ignore[arg-type]


def batch() -> tuple[Column, Column]:
    return ragged(PROMPT_LENGTHS, 1).take(GROUPS), ragged(RESPONSE_LENGTHS, 2)


def rows_of(parallel: ParallelContext) -> NDArray[np.int64]:
    """This rank's rows: on two ranks four and two of them, so that groups are cut."""
    if parallel.size == 1:
        return np.arange(6)
    return np.array([0, 2, 3, 5]) if parallel.rank == 0 else np.array([1, 4])


def pieces(
    model: FsdpEngine, rows: NDArray[np.int64], max_tokens: int, share: bool = True
) -> list[MicroBatch]:
    """Rows as micro-batches; prompts are shared where the model says that it can."""
    packing = model.packing(max_tokens)
    shares = share and packing.share_prompts
    return cut(*batch(), GROUPS, replace(packing, share_prompts=shares), rows)


def mine(model: FsdpEngine, max_tokens: int) -> list[MicroBatch]:
    """This rank's rows, or all on a mesh of one."""
    return pieces(model, rows_of(model.parallel), max_tokens)


def log_probs_of(model: FsdpEngine, max_tokens: int = 1000, share: bool = True) -> torch.Tensor:
    """Log-probabilities of all response tokens, packed; every rank computes them all."""
    got = torch.full((NUM_TOKENS,), torch.nan)

    def read(outputs: TokenOutputs, part: MicroBatch) -> None:
        got[part.tokens] = outputs.values

    model.infer(pieces(model, np.arange(6), max_tokens, share), LANGUAGE, read)
    return got


def cross_entropy(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
    """This micro-batch's share of the mean over all tokens of the whole batch."""
    return -outputs.values.sum() / NUM_TOKENS


def model_folder(kind: str, world: World, folder: Path) -> Path:
    place = folder / kind
    if world.rank == 0:
        write_model(kind, place)
    dist.barrier()
    return place


def engine(folder: Path, world: World, **options: bool) -> FsdpEngine:
    """On all ranks."""
    return FsdpEngine(folder, parallel_of(world), torch.float32, **options)


def engine_alone(folder: Path, world: World) -> FsdpEngine:
    """On each rank one of its own."""
    return FsdpEngine(folder, alone(world), torch.float32)


def full(parameter: torch.Tensor) -> torch.Tensor:
    gathered = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return gathered.detach().clone()


def local_weights(model: FsdpEngine) -> list[torch.Tensor]:
    """This rank's own storage of every weight, by name."""
    return [view.tensor for _, views in sorted(model.views().items()) for view in views]


def weights(model: FsdpEngine) -> dict[str, torch.Tensor]:
    return {name: full(parameter) for name, parameter in model.module.named_parameters()}


def assert_same_weights(one: FsdpEngine, other: FsdpEngine) -> None:
    expected = weights(other)
    for name, tensor in weights(one).items():
        difference = float((tensor - expected[name]).abs().max())
        assert difference < 1e-5, (name, difference)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    difference = float((got - expected).abs().max())
    assert difference < 1e-5, difference


def hugging_face(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def expected_log_probs(folder: Path) -> torch.Tensor:
    """Hugging Face's, one unpadded row at a time, packed."""
    model = hugging_face(folder)
    prompts, responses = batch()
    found = []
    for prompt, response in zip(prompts.runs(), responses.runs(), strict=True):
        tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
        all_log_probs = model(tokens[None]).logits[0].log_softmax(-1)
        own = all_log_probs[len(prompt) - 1 : -1]
        found.append(own.gather(1, tokens[len(prompt) :, None])[:, 0])
    return torch.cat(found)


def outputs_equal_hugging_face(world: World, folder: Path, kind: str) -> None:
    check_outputs(model_folder(kind, world, folder), parallel_of(world), kind != "gemma2")


def check_outputs(place: Path, parallel: ParallelContext, shares: bool = True) -> None:
    model = FsdpEngine(place, parallel, torch.float32, trained=False)
    assert model.packing(1).share_prompts is shares, "where all tokens see everything before them"
    expected = expected_log_probs(place)
    for share in (False, True):
        for max_tokens in (1, 40, 1000):  # each sequence alone, some together, all together
            got = log_probs_of(model, max_tokens, share)
            assert_close(got, expected)


def a_value_head_starts_at_zero_and_learns(world: World, folder: Path, kind: str) -> None:
    model = engine(model_folder(kind, world, folder), world, value_head=True)
    model.use_optimizer(settings(learning_rate=3e-3))

    def squared_error(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
        seen.append(outputs.values.detach().clone())
        return (outputs.values - 1.0).square().sum() / NUM_TOKENS

    seen: list[torch.Tensor] = []
    model.update([LossTerm(SCALAR, mine(model, 1000), squared_error)])
    assert all((values == 0).all() for values in seen)
    for _ in range(20):
        seen.clear()
        model.update([LossTerm(SCALAR, mine(model, 1000), squared_error)])
    distance = parallel_of(world).sum(
        torch.stack([(values - 1.0).square().sum() for values in seen]).sum()
    )
    assert float(distance) < 0.5 * NUM_TOKENS, distance


def pieces_give_the_gradient_of_the_whole(world: World, folder: Path, kind: str) -> None:
    place = model_folder(kind, world, folder)
    whole, parted = engine(place, world), engine(place, world)
    for model in (whole, parted):
        model.use_optimizer(settings())
    for _ in range(3):
        one = whole.update([LossTerm(LANGUAGE, mine(whole, 1000), cross_entropy)])
        many = parted.update([LossTerm(LANGUAGE, mine(parted, 20), cross_entropy)])
        assert abs(one - many) < 1e-5, (one, many)
    assert_same_weights(whole, parted)


def ranks_do_not_change_the_result(world: World, folder: Path, kind: str) -> None:
    place = model_folder(kind, world, folder)
    together, single = engine(place, world), engine_alone(place, world)
    for model in (together, single):
        model.use_optimizer(settings())
    for _ in range(3):
        losses = torch.zeros(2)
        norms = [
            together.update([LossTerm(LANGUAGE, mine(together, 40), recording(losses, 0))]),
            single.update([LossTerm(LANGUAGE, mine(single, 40), recording(losses, 1))]),
        ]
        total = parallel_of(world).sum(losses[:1])
        assert abs(float(total[0] - losses[1])) < 1e-5, (total, losses)
        assert abs(norms[0] - norms[1]) < 1e-5, norms
    assert_same_weights(together, single)
    assert together.version == single.version == 3


def recording(losses: torch.Tensor, place: int) -> Loss:
    def loss(outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        share = cross_entropy(outputs, part)
        losses[place] += share.detach()
        return share

    return loss


def recomputation_changes_nothing(world: World, folder: Path, kind: str) -> None:
    place = model_folder(kind, world, folder)
    plain, again = engine(place, world), engine(place, world, recompute=True)
    for model in (plain, again):
        model.use_optimizer(settings())
    for _ in range(3):
        norms = [m.update([LossTerm(LANGUAGE, mine(m, 40), cross_entropy)]) for m in (plain, again)]
        assert abs(norms[0] - norms[1]) < 1e-5, norms
    assert_same_weights(plain, again)


def updates_are_those_of_plain_torch(world: World, folder: Path, kind: str) -> None:
    check_updates(model_folder(kind, world, folder), parallel_of(world))


def check_updates(place: Path, parallel: ParallelContext) -> None:
    """AdamW, clipping far below the gradient's norm, warm-up and a straight fall to zero."""
    chosen = settings(
        gradient_clip=0.05,
        warmup_updates=2,
        total_updates=6,
        decay=LearningRateDecay.LINEAR,
        epsilon=1e-4,
    )
    model = FsdpEngine(place, parallel, torch.float32)
    model.use_optimizer(chosen)
    reference = hugging_face(place)
    adam = torch.optim.AdamW(
        reference.parameters(), lr=1.0, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.01
    )
    prompts, responses = batch()
    for factor in (0.0, 0.5, 1.0, 0.75, 0.5, 0.25):
        assert abs(model.learning_rate - 1e-3 * factor) < 1e-12
        norm = model.update([LossTerm(LANGUAGE, mine(model, 40), cross_entropy)])
        for prompt, response in zip(prompts.runs(), responses.runs(), strict=True):
            tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
            log_probs = reference(tokens[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
            loss = -log_probs.gather(1, tokens[len(prompt) :, None]).sum() / NUM_TOKENS
            loss.backward()
        expected_norm = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05))
        adam.param_groups[0]["lr"] = 1e-3 * factor
        adam.step()
        adam.zero_grad()
        assert abs(norm - expected_norm) < 1e-5 * max(1.0, expected_norm), (norm, expected_norm)
    expected = dict(reference.named_parameters())
    for name, tensor in weights(model).items():
        assert_close(tensor, expected[name].detach())
    assert model.learning_rate == 0.0


def a_gradient_that_is_not_finite_changes_no_weight(world: World, folder: Path) -> None:
    model = engine(model_folder("llama", world, folder), world)
    model.use_optimizer(settings())
    before = weights(model)
    bad_rank = world.size - 1

    def broken(outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        share = cross_entropy(outputs, part)
        return share * torch.nan if world.rank == bad_rank else share

    norm = model.update([LossTerm(LANGUAGE, mine(model, 1000), broken)])
    assert not np.isfinite(norm), norm
    for name, tensor in weights(model).items():
        assert torch.equal(tensor, before[name]), name
    assert np.isfinite(model.update([LossTerm(LANGUAGE, mine(model, 1000), cross_entropy)]))
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights(model).items())


def frozen_models_keep_no_gradients(world: World, folder: Path) -> None:
    model = engine(model_folder("llama", world, folder), world, trained=False)
    model.infer(mine(model, 40), LANGUAGE, lambda outputs, part: None)
    assert all(p.grad is None and not p.requires_grad for p in model.module.parameters())


def frozen_models_are_kept_in_the_format_they_compute_in(world: World, folder: Path) -> None:
    place = model_folder("tied", world, folder)
    trained, frozen = (
        FsdpEngine(place, parallel_of(world), torch.bfloat16, trained=trained)
        for trained in (True, False)
    )
    assert {tensor.dtype for tensor in local_weights(trained)} == {torch.float32}
    assert {tensor.dtype for tensor in local_weights(frozen)} == {torch.bfloat16}
    expected = log_probs_of(trained)
    assert torch.equal(log_probs_of(frozen), expected), "the same numbers, bit by bit"
    trained.use_optimizer(settings())
    trained.update([LossTerm(LANGUAGE, mine(trained, 1000), cross_entropy)])
    frozen.copy_weights_from(trained, entirely=True)
    changed = log_probs_of(trained)
    assert not torch.equal(changed, expected)
    assert torch.equal(log_probs_of(frozen), changed)


def a_rank_without_rows_takes_part(world: World, folder: Path) -> None:
    place = model_folder("llama", world, folder)
    uneven, single = engine(place, world), engine_alone(place, world)
    for model in (uneven, single):
        model.use_optimizer(settings())
    everything = pieces(single, np.arange(6), 20)
    own = [LossTerm(LANGUAGE, everything if world.rank == 0 else [], cross_entropy)]
    whole = [LossTerm(LANGUAGE, everything, cross_entropy)]
    for _ in range(2):
        norms = [uneven.update(own), single.update(whole)]
        assert abs(norms[0] - norms[1]) < 1e-5, norms
    assert_same_weights(uneven, single)


def saved_models_load_elsewhere(world: World, folder: Path, kind: str) -> None:
    check_saved_models(model_folder(kind, world, folder), parallel_of(world), folder)


def check_saved_models(place: Path, parallel: ParallelContext, folder: Path) -> None:
    model = FsdpEngine(place, parallel, torch.float32)
    model.use_optimizer(settings())
    model.update([LossTerm(LANGUAGE, mine(model, 1000), cross_entropy)])
    for dtype in (torch.float32, torch.bfloat16):
        target = folder / f"saved-{dtype}"
        model.save(target, dtype)
        dist.barrier(parallel.group)
        loaded = AutoModelForCausalLM.from_pretrained(target)
        assert loaded.dtype is dtype and loaded.config.use_cache
        found = dict(loaded.named_parameters())
        trained = weights(model)
        assert found.keys() == trained.keys()
        for name, tensor in trained.items():
            assert torch.equal(found[name].detach(), tensor.to(dtype)), name
    expected = expected_log_probs(folder / f"saved-{torch.float32}")
    assert_close(log_probs_of(model), expected)


def reward_models_load_elsewhere(world: World, folder: Path, kind: str) -> None:
    """As a classifier of one label, whose score is that of the last token; here, too."""
    place = model_folder(kind, world, folder)
    model = engine(place, world, value_head=True)
    model.use_optimizer(settings(learning_rate=3e-3))

    def distance(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
        return (outputs.values - 1.0).square().sum() / NUM_TOKENS

    for _ in range(3):
        model.update([LossTerm(SCALAR, mine(model, 1000), distance)])
    target = folder / f"saved-{kind}-classifier"
    model.save(target, torch.float32)
    dist.barrier()
    loaded, info = AutoModelForSequenceClassification.from_pretrained(
        target, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config.num_labels == 1
    again = engine(target, world, value_head=True)
    assert_same_weights(again, model)
    scores = {}

    def read(outputs: TokenOutputs, part: MicroBatch) -> None:
        scores.update(zip(part.rows.tolist(), outputs.values.tolist(), strict=True))

    for max_tokens in (1, 1000):
        parts = mine(again, max_tokens)
        again.infer([replace(part, predictors=part.ends) for part in parts], SCALAR, read)
    prompts, responses = batch()
    assert len(scores) == len(rows_of(world))
    for row, score in zip(
        rows_of(world).tolist(), [scores[r] for r in sorted(scores)], strict=True
    ):
        tokens = np.concatenate([prompts.runs()[row], responses.runs()[row]])
        with torch.no_grad():
            expected = loaded.eval()(torch.tensor(tokens, dtype=torch.long)[None]).logits
        assert abs(float(expected) - score) < 1e-5 and abs(score) > 1e-3, (row, expected, score)
    with pytest.raises(WrongHead, match="without an output over the vocabulary.*ForSequenceCl"):
        engine(target, world)
    with pytest.raises(WrongHead, match="gives no score.*ForCausalLM, allowed a sequence class"):
        engine(place, world, value_head=True, needs_head=True)
    engine(target, world, value_head=True, needs_head=True)


def a_reward_model_without_its_head_is_refused(world: World, folder: Path) -> None:
    place = folder / "headless"
    if world.rank > 0:
        return  # only the first rank reads
    write_classifier("qwen2", place)
    tensors = load_file(place / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    with pytest.raises(WrongHead, match=r"without score\.weight"):
        engine(place, world, value_head=True)


def a_critic_takes_the_actors_trunk_only(world: World, folder: Path, kind: str) -> None:
    place = model_folder(kind, world, folder)
    actor, critic = engine(place, world), engine(place, world, value_head=True)
    actor.use_optimizer(settings())
    actor.update([LossTerm(LANGUAGE, mine(actor, 1000), cross_entropy)])
    critic.copy_weights_from(actor)
    trained, taken = weights(actor), weights(critic)
    head = {name for name in taken if taken[name].shape == (1, 128)}
    assert head and all((taken[name] == 0).all() for name in head)
    for name in taken.keys() - head:
        assert torch.equal(taken[name], trained[name]), name


def a_whole_copy_is_of_models_that_are_alike(world: World, folder: Path, kind: str) -> None:
    place = model_folder(kind, world, folder)
    actor, reference = engine(place, world), engine(place, world, trained=False)
    actor.use_optimizer(settings())
    actor.update([LossTerm(LANGUAGE, mine(actor, 1000), cross_entropy)])
    before = reference.version
    reference.copy_weights_from(actor, entirely=True)
    copied = weights(reference)
    assert all(torch.equal(copied[name], value) for name, value in weights(actor).items())
    assert reference.version == before + 1, "a generation engine sees that there are new ones"
    actor.update([LossTerm(LANGUAGE, mine(actor, 1000), cross_entropy)])
    assert any(not torch.equal(copied[name], value) for name, value in weights(actor).items())
    assert all(torch.equal(copied[name], value) for name, value in weights(reference).items())
    with pytest.raises(UnsupportedModel, match="models that differ: got .* of shape"):
        engine(place, world, value_head=True).copy_weights_from(actor, entirely=True)


PER_MODEL = {
    "outputs equal Hugging Face's": outputs_equal_hugging_face,
    "a value head starts at zero and learns": a_value_head_starts_at_zero_and_learns,
    "pieces give the gradient of the whole": pieces_give_the_gradient_of_the_whole,
    "ranks do not change the result": ranks_do_not_change_the_result,
    "recomputation changes nothing": recomputation_changes_nothing,
    "saved models load elsewhere": saved_models_load_elsewhere,
    "reward models load elsewhere": reward_models_load_elsewhere,
    "a critic takes the actor's trunk only": a_critic_takes_the_actors_trunk_only,
    "a whole copy is of models that are alike": a_whole_copy_is_of_models_that_are_alike,
}
SCENARIOS: dict[str, Scenario] = {
    **{
        f"{name} ({kind})": partial(scenario, kind=kind)
        for name, scenario in PER_MODEL.items()
        for kind in MODELS
    },
    **{
        f"{name} ({kind})": partial(PER_MODEL[name], kind=kind)
        for kind in ("granite", "gemma2")
        for name in ("outputs equal Hugging Face's", "saved models load elsewhere")
    },
    "reward models load elsewhere (gemma2)": partial(reward_models_load_elsewhere, kind="gemma2"),
    "updates are those of plain torch": partial(updates_are_those_of_plain_torch, kind="llama"),
    "updates are those of plain torch (granite)": partial(
        updates_are_those_of_plain_torch, kind="granite"
    ),
    "a gradient that is not finite changes no weight": (
        a_gradient_that_is_not_finite_changes_no_weight
    ),
    "a reward model without its head is refused": a_reward_model_without_its_head_is_refused,
    "frozen models keep no gradients": frozen_models_keep_no_gradients,
    "frozen models are kept in the format they compute in": (
        frozen_models_are_kept_in_the_format_they_compute_in
    ),
    "a rank without rows takes part": a_rank_without_rows_takes_part,
}


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
