"""What every training engine must do, on any mesh: scenarios for worlds of ranks.

Oracles are Hugging Face's own forward pass, plain torch on the full batch, and FSDP on one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from rlhf_api.plan import Mesh
from rlhf_api.spec.models import LearningRateDecay
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.offloading import give_free_pages_back
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, cut
from rlhf_runtime.engines.parallel import ParallelContext, make_contexts
from rlhf_runtime.engines.training import (
    Loss,
    LossTerm,
    ReadLogProbs,
    ReadValues,
    TokenOutputs,
    TrainingEngine,
)
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import NotLoaded, UnsupportedModel
from rlhf_runtime.models.errors import WrongHead
from rlhf_runtime.reshard.local_shards import LocalShards
from rlhf_runtime.workers.process import resident_bytes

from ..meshes import alone
from .tiny_models import ragged, write_model
from .whole_weights import gathered_weights

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


def cross_entropy(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
    """This micro-batch's share of the mean over all tokens of the whole batch."""
    return -outputs.values.sum() / NUM_TOKENS


@dataclass(frozen=True)
class Setup:
    """An engine on a mesh."""

    engine: Callable[..., TrainingEngine]
    """Called with a folder, the mesh as a rank sees it, a precision, and options by name."""
    mesh: Mesh
    options: dict[str, Any] = field(default_factory=dict)

    def parallel(self, world: World) -> ParallelContext:
        """The mesh; all ranks of the world are in it. Collective."""
        return make_contexts([self.mesh], world)[self.mesh]

    def build(
        self, folder: Path, world: World, precision: torch.dtype = torch.float32, **options: Any
    ) -> Built:
        """An engine on all ranks. Collective."""
        return self.build_on(folder, self.parallel(world), precision, **options)

    def build_on(
        self,
        folder: Path,
        parallel: ParallelContext,
        precision: torch.dtype = torch.float32,
        **options: Any,
    ) -> Built:
        """An engine on a mesh that is there."""
        made = self.engine(folder, parallel, precision, **self.options, **options)
        return Built(made, parallel)


@dataclass(frozen=True)
class Built:
    """An engine, and the mesh that it is on."""

    engine: TrainingEngine
    parallel: ParallelContext

    @property
    def reads(self) -> bool:
        """Whether losses and readers are called on this rank."""
        return self.parallel.is_last_stage

    def train(self, loss: Loss = cross_entropy, max_tokens: int = 40) -> float:
        """An update on this rank's rows; returns the gradient's norm."""
        return self.engine.update([LossTerm(LANGUAGE, mine(self, max_tokens), loss)])


def fsdp_alone(folder: Path, world: World) -> Built:
    """On each rank one of its own."""
    parallel = alone(world)
    return Built(FsdpEngine(folder, parallel, torch.float32), parallel)


def rows_of(parallel: ParallelContext) -> NDArray[np.int64]:
    """The rows of a rank's replica: of several the first has four and the second two, so that
    groups are cut."""
    if parallel.data_size == 1:
        return np.arange(6)
    parts = {0: [0, 2, 3, 5], 1: [1, 4]}
    return np.array(parts.get(parallel.at.data, []), dtype=np.int64)


def pieces(
    built: Built, rows: NDArray[np.int64], max_tokens: int, share: bool = True
) -> list[MicroBatch]:
    """Rows as micro-batches; prompts are shared where the model says that it can."""
    packing = built.engine.packing(max_tokens)
    shares = share and packing.share_prompts
    return cut(*batch(), GROUPS, replace(packing, share_prompts=shares), rows)


def mine(built: Built, max_tokens: int) -> list[MicroBatch]:
    """The rows of this rank's replica."""
    return pieces(built, rows_of(built.parallel), max_tokens)


def log_probs_of(built: Built, max_tokens: int = 1000, share: bool = True) -> torch.Tensor:
    """Log-probabilities of all response tokens, packed; every replica computes them all."""
    got = torch.full((NUM_TOKENS,), torch.nan)

    def read(outputs: TokenOutputs, part: MicroBatch) -> None:
        got[part.tokens] = outputs.values

    built.engine.infer(pieces(built, np.arange(6), max_tokens, share), LANGUAGE, read)
    return got


def model_folder(kind: str, world: World, folder: Path) -> Path:
    place = folder / kind
    if world.rank == 0 and not place.exists():
        write_model(kind, place)
    dist.barrier()
    return place


def whole_weights(built: Built) -> dict[str, torch.Tensor]:
    """All weights as they are trained, from the parts of all ranks. Collective."""
    return gathered_weights(built.engine.master_views(), built.parallel.group)


def assert_same_weights(one: Built, other: Built) -> None:
    """Collective over both meshes."""
    expected, got = whole_weights(other), whole_weights(one)
    assert got.keys() == expected.keys()
    for name, tensor in got.items():
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
            assert_close(got, expected) if built.reads else assert_nothing_read(got)


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
            got[:, part.tokens] = torch.stack([outputs.values, outputs.entropies])

        built.engine.infer(pieces(built, np.arange(6), 40), reading, read)
        found.append(got)
    if made.reads:
        assert_close(*found)


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
        terms = [[LossTerm(SCALAR, mine(b, 1000), squared_error)] for b in (made, oracle)]
        seen.clear()
        norm = made.engine.update(terms[0])
        assert number or all((values == 0).all() for values in seen)
        expected = oracle.engine.update(terms[1])
        assert abs(norm - expected) < 1e-4 * max(1.0, expected), (number, norm, expected)
    seen.clear()
    oracle.engine.update(terms[1])
    distance = sum(float((values - 1.0).square().sum()) for values in seen)
    assert distance < 0.9 * NUM_TOKENS, distance


def pieces_give_the_gradient_of_the_whole(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    place = model_folder(kind, world, folder)
    whole, parted = setup.build(place, world), setup.build(place, world)
    for built in (whole, parted):
        built.engine.use_optimizer(settings())
    for _ in range(3):
        one, many = whole.train(max_tokens=1000), parted.train(max_tokens=20)
        assert abs(one - many) < 1e-5, (one, many)
    assert_same_weights(whole, parted)


def ranks_do_not_change_the_result(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """Losses, gradients and weights are those of FSDP on one rank."""
    place = model_folder(kind, world, folder)
    together, single = setup.build(place, world), fsdp_alone(place, world)
    for built in (together, single):
        built.engine.use_optimizer(settings())
    for _ in range(3):
        losses = torch.zeros(2)
        norms = [together.train(recording(losses, 0)), single.train(recording(losses, 1))]
        total = together.parallel.sum(losses[:1])
        if together.reads:
            assert abs(float(total[0] - losses[1])) < 1e-5, (total, losses)
        assert abs(norms[0] - norms[1]) < 1e-5, norms
    assert_same_weights(together, single)
    assert together.engine.version == single.engine.version == 3


def recording(losses: torch.Tensor, place: int) -> Loss:
    def loss(outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        share = cross_entropy(outputs, part)
        losses[place] += share.detach()
        return share

    return loss


def recomputation_changes_nothing(world: World, folder: Path, setup: Setup, kind: str) -> None:
    place = model_folder(kind, world, folder)
    plain, again = setup.build(place, world), setup.build(place, world, recompute=True)
    for built in (plain, again):
        built.engine.use_optimizer(settings())
    for _ in range(3):
        norms = [built.train() for built in (plain, again)]
        assert abs(norms[0] - norms[1]) < 1e-5, norms
    assert_same_weights(plain, again)


def half_precision_trains_nearly_alike(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """Trained weights are kept in float32: small steps are not lost."""
    place = model_folder(kind, world, folder)
    half, single = setup.build(place, world, torch.bfloat16), fsdp_alone(place, world)
    before = whole_weights(single)
    for name, tensor in whole_weights(half).items():
        assert torch.equal(tensor, before[name]), name
    for built in (half, single):
        built.engine.use_optimizer(settings(learning_rate=1e-4))
        for _ in range(3):
            built.train()
    moved = [
        torch.cat([(each[name] - before[name]).flatten() for name in before])
        for each in (whole_weights(half), whole_weights(single))
    ]
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.95
    got, expected = log_probs_of(half), log_probs_of(single)
    if half.reads:
        assert float((got - expected).abs().mean()) < 0.05


def updates_are_those_of_plain_torch(world: World, folder: Path, setup: Setup, kind: str) -> None:
    place = model_folder(kind, world, folder)
    check_updates(setup.build(place, world), place)


def check_updates(built: Built, place: Path) -> None:
    """AdamW, clipping far below the gradient's norm, warm-up and a straight fall to zero."""
    chosen = settings(
        gradient_clip=0.05,
        warmup_updates=2,
        total_updates=6,
        decay=LearningRateDecay.LINEAR,
        epsilon=1e-4,
    )
    built.engine.use_optimizer(chosen)
    reference = hugging_face(place)
    adam = torch.optim.AdamW(
        reference.parameters(), lr=1.0, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.01
    )
    prompts, responses = batch()
    for factor in (0.0, 0.5, 1.0, 0.75, 0.5, 0.25):
        assert abs(built.engine.learning_rate - 1e-3 * factor) < 1e-12
        norm = built.train()
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
    for name, tensor in whole_weights(built).items():
        assert_close(tensor, expected[name].detach())
    assert built.engine.learning_rate == 0.0


def a_gradient_that_is_not_finite_changes_no_weight(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    built = setup.build(model_folder(kind, world, folder), world)
    built.engine.use_optimizer(settings())
    before = whole_weights(built)
    bad_replica = built.parallel.data_size - 1

    def broken(outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        share = cross_entropy(outputs, part)
        return share * torch.nan if built.parallel.at.data == bad_replica else share

    norm = built.train(broken)
    assert not np.isfinite(norm), norm
    for name, tensor in whole_weights(built).items():
        assert torch.equal(tensor, before[name]), name
    assert np.isfinite(built.train())
    after = whole_weights(built)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in after.items())


def a_replica_without_rows_takes_part(world: World, folder: Path, setup: Setup, kind: str) -> None:
    place = model_folder(kind, world, folder)
    uneven, single = setup.build(place, world), fsdp_alone(place, world)
    for built in (uneven, single):
        built.engine.use_optimizer(settings())
    everything = pieces(single, np.arange(6), 20)
    has_rows = uneven.parallel.at.data == 0
    own = [LossTerm(LANGUAGE, everything if has_rows else [], cross_entropy)]
    whole = [LossTerm(LANGUAGE, everything, cross_entropy)]
    for _ in range(2):
        norms = [uneven.engine.update(own), single.engine.update(whole)]
        assert abs(norms[0] - norms[1]) < 1e-5, norms
    assert_same_weights(uneven, single)


def silent_rows_are_read_and_change_nothing(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    """Two terms, of which one has rows without a gradient, is the sum of what has one."""
    place = model_folder(kind, world, folder)
    parted, single = setup.build(place, world), fsdp_alone(place, world)
    seen = []

    def counted(outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        seen.append(len(part.rows))
        return cross_entropy(outputs, part)

    for built in (parted, single):
        built.engine.use_optimizer(settings())
    rows = rows_of(parted.parallel)
    halves = [pieces(parted, rows[rows < 4], 20), pieces(parted, rows[rows >= 4], 20)]
    terms = [
        LossTerm(LANGUAGE, halves[0], cross_entropy, silent=halves[1]),
        LossTerm(ReadLogProbs(0.5), halves[1], counted, silent=halves[0]),
    ]
    oracle = [
        LossTerm(LANGUAGE, pieces(single, np.arange(4), 20), cross_entropy),
        LossTerm(ReadLogProbs(0.5), pieces(single, np.arange(4, 6), 20), cross_entropy),
    ]
    for _ in range(2):
        norms = [parted.engine.update(terms), single.engine.update(oracle)]
        assert abs(norms[0] - norms[1]) < 1e-5 * norms[1], norms
    assert not parted.reads or sum(seen) >= 2 * len(rows)
    assert_same_weights(parted, single)


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
        assert_close(got, expected)


def reward_models_load_elsewhere(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """As a classifier of one label, whose score is that of the last token; here, too."""
    place = model_folder(kind, world, folder)
    built = setup.build(place, world, value_head=True)
    built.engine.use_optimizer(settings(learning_rate=3e-3))

    def distance(outputs: TokenOutputs, _: MicroBatch) -> torch.Tensor:
        return (outputs.values - 1.0).square().sum() / NUM_TOKENS

    for _ in range(3):
        built.engine.update([LossTerm(SCALAR, mine(built, 1000), distance)])
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


def every_micro_batch_is_told(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """Who watches a rank sees that it goes on, on every stage, and when the last one is done."""
    ticks: list[None] = []
    place = model_folder(kind, world, folder)
    built = setup.build(place, world, tick=lambda: ticks.append(None))
    built.engine.use_optimizer(settings())
    parts = pieces(built, np.arange(6), 1)
    assert len(parts) > 2
    built.engine.infer(parts, LANGUAGE, lambda outputs, part: None)
    assert len(ticks) >= len(parts)
    ticks.clear()
    built.engine.update([LossTerm(LANGUAGE, parts, cross_entropy)])
    assert len(ticks) >= len(parts)


def offloading_changes_nothing(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """Not a bit, wherever it is done; what holds views sees what comes afterwards."""
    place = model_folder(kind, world, folder)
    moved, stays = (setup.build(place, world, torch.bfloat16) for _ in range(2))
    held = moved.engine.views(), moved.engine.master_views()
    there_and_back(moved)
    for built in (moved, stays):
        built.engine.use_optimizer(settings())
    for _ in range(2):
        there_and_back(moved)
        log_probs = [log_probs_of(built) for built in (moved, stays)]
        assert not moved.reads or torch.equal(*log_probs)
        there_and_back(moved)
        norms = [built.train() for built in (moved, stays)]
        assert norms[0] == norms[1]
    there_and_back(moved)
    assert_same_bits(moved.engine.state(), stays.engine.state())
    for before, now in zip(held, (stays.engine.views(), stays.engine.master_views()), strict=True):
        for name, views in now.items():
            for one, other in zip(before[name], views, strict=True):
                assert torch.equal(one.tensor, other.tensor), name
    assert moved.engine.version == stays.engine.version == 2


def there_and_back(built: Built) -> None:
    """To the host, where nothing is left of an engine on the device, and back."""
    engine = built.engine
    before = dict(engine.held_bytes())
    for _ in range(2):  # twice is as good as once
        engine.offload()
    assert engine.is_offloaded and not any(engine.held_bytes().values())
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in storages_of(engine))
    for use in (engine.require_loaded, engine.views, engine.master_views, engine.state):
        with pytest.raises(NotLoaded, match="allowed calls after a load; the plan lacks a load"):
            use()
    with pytest.raises(NotLoaded):
        built.engine.infer([], LANGUAGE, lambda outputs, part: None)
    with pytest.raises(NotLoaded):
        built.engine.save(Path("nowhere"), torch.float32)
    for _ in range(2):
        engine.load()
    assert not engine.is_offloaded and engine.held_bytes() == before


def storages_of(engine: TrainingEngine) -> list[torch.Tensor]:
    """Tensors of all parameters on this rank."""
    module = engine.module if isinstance(engine, FsdpEngine) else engine.stage  # type: ignore
    return [p.to_local() if isinstance(p, DTensor) else p for p in module.parameters()]


def assert_same_bits(one: Any, other: Any) -> None:
    """Of two states."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_bits(one[key], other[key])
    elif isinstance(one, LocalShards):
        for mine, theirs in zip(one.views, other.views, strict=True):
            assert torch.equal(mine.tensor, theirs.tensor)
    elif isinstance(one, DTensor):
        assert torch.equal(one.to_local(), other.to_local())
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def offloading_gives_memory_back(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """What the process has resident falls by what the engine held, and rises again."""
    place = model_folder("wide", world, folder)
    built = setup.build(place, world)
    built.engine.use_optimizer(settings())
    built.train(max_tokens=1000)
    give_free_pages_back()
    held, before = sum(built.engine.held_bytes().values()), resident_bytes()
    built.engine.offload()
    offloaded = resident_bytes()
    assert abs(before - offloaded - held) < 0.15 * held, (before, offloaded, held)
    built.engine.load()
    assert abs(resident_bytes() - offloaded - held) < 0.15 * held, (resident_bytes(), held)
    built.engine.offload()
    assert abs(resident_bytes() - offloaded) < 0.15 * held


PER_MODEL: dict[str, Callable[..., None]] = {
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
"""For every kind of model."""
ONCE: dict[str, Callable[..., None]] = {
    "temperature and entropy are those asked for": temperature_and_entropy_are_those_asked_for,
    "half precision trains nearly alike": half_precision_trains_nearly_alike,
    "updates are those of plain torch": updates_are_those_of_plain_torch,
    "a gradient that is not finite changes no weight": (
        a_gradient_that_is_not_finite_changes_no_weight
    ),
    "a replica without rows takes part": a_replica_without_rows_takes_part,
    "silent rows are read and change nothing": silent_rows_are_read_and_change_nothing,
    "every micro-batch is told": every_micro_batch_is_told,
    "offloading changes nothing": offloading_changes_nothing,
    "offloading gives memory back": offloading_gives_memory_back,
}
"""For one."""
