"""How every training engine updates weights.

Oracles are plain torch on the full batch, and FSDP on one rank.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_api.spec.models import LearningRateDecay
from rlhf_flow.step.losses import Dpo
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.packing import MicroBatch, pack_micro_batches
from rlhf_runtime.engines.training import (
    Loss,
    ReadLogProbs,
    TokenOutputs,
    WeightedLoss,
)
from rlhf_runtime.engines.world import World
from rlhf_runtime.numerics.losses import Denominators
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import LossMask, MiniBatch, comparison_micro_batches
from rlhf_runtime.roles.preference_loss_fn import DpoLossFn

from .contract_setup import (
    GROUPS,
    HALF,
    LANGUAGE,
    NEAR,
    NUM_TOKENS,
    Built,
    Setup,
    assert_close,
    assert_same_norm,
    assert_same_weights,
    batch,
    cross_entropy,
    fsdp_alone,
    hugging_face,
    log_probs_of,
    model_folder,
    pieces,
    rows_of,
    settings,
    whole_weights,
)
from .tiny_models import ragged

PREFERENCE = np.array([1, -1] * 3, dtype=np.int8)


def pieces_give_the_gradient_of_the_whole(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    place = model_folder(kind, world, folder)
    whole, parted = setup.build(place, world), setup.build(place, world)
    before = whole_weights(whole)
    for built in (whole, parted):
        built.engine.use_optimizer(settings())
    for _ in range(3):
        one, many = whole.train(max_tokens=1000), parted.train(max_tokens=20)
        assert_same_norm(many, one, setup.precision)
    assert_same_weights(parted, whole, before)


def ranks_do_not_change_the_result(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """Losses, gradients and weights are those of FSDP on one rank."""
    place = model_folder(kind, world, folder)
    together, single = setup.build(place, world), fsdp_alone(place, world)
    before = whole_weights(single)
    for built in (together, single):
        built.engine.use_optimizer(settings())
    for _ in range(3):
        losses = torch.zeros(2)
        norms = [together.train(recording(losses, 0)), single.train(recording(losses, 1))]
        total = together.parallel.sum(losses[:1])
        if together.reads:
            allowed = NEAR if setup.precision is HALF else 1e-5
            assert abs(float(total[0] - losses[1])) < allowed, (total, losses)
        assert_same_norm(*norms, setup.precision)
    assert_same_weights(together, single, before)
    assert together.engine.version == single.engine.version == 3


def recording(losses: torch.Tensor, place: int) -> Loss:
    def loss(outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        share = cross_entropy(outputs, part)
        losses[place] += share.detach().cpu()
        return share

    return loss


def recomputation_changes_nothing(world: World, folder: Path, setup: Setup, kind: str) -> None:
    place = model_folder(kind, world, folder)
    plain, again = setup.build(place, world), setup.build(place, world, recompute=True)
    for built in (plain, again):
        built.engine.use_optimizer(settings())
    for _ in range(3):
        assert_same_norm(*(built.train() for built in (plain, again)))
    assert_same_weights(plain, again)


def equal_updates_give_equal_weights(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """To the last bit, with sequences so long that a GPU's kernels add in parts."""
    place = model_folder(kind, world, folder)
    prompts, responses = ragged([200] * 4, seed=1), ragged([250, 10, 130, 250], seed=2)
    groups = np.array([0, 0, 1, 1])
    updated = []
    for _ in range(2):
        built = setup.build(place, world)
        built.engine.use_optimizer(settings())
        packing = built.engine.packing(2000)
        parts = pack_micro_batches(prompts, responses, groups, packing)
        for _ in range(2):
            built.engine.update([WeightedLoss(LANGUAGE, parts, cross_entropy)])
        updated.append(whole_weights(built))
    for name, tensor in updated[0].items():
        assert torch.equal(tensor, updated[1][name]), name


def half_precision_trains_nearly_alike(world: World, folder: Path, setup: Setup, kind: str) -> None:
    """Trained weights are kept in float32: small steps are not lost."""
    place = model_folder(kind, world, folder)
    half, single = setup.build(place, world, HALF), fsdp_alone(place, world)
    before = whole_weights(single)
    for name, tensor in whole_weights(half).items():
        assert torch.equal(tensor, before[name]), name
    for built in (half, single):
        built.engine.use_optimizer(settings(learning_rate=1e-4))
        for _ in range(3):
            built.train()
    assert_same_weights(half, single, before)
    got, expected = log_probs_of(half), log_probs_of(single)
    if half.reads:
        assert_close(got, expected, half.precision)


def updates_are_those_of_plain_torch(world: World, folder: Path, setup: Setup, kind: str) -> None:
    place = model_folder(kind, world, folder)
    check_updates(setup.build(place, world), place)


def check_updates(built: Built, place: Path) -> None:
    """AdamW, clipping far below the gradient's norm, warm-up and a straight fall to zero.

    Weight decay is so strong that a decayed norm would differ.
    """
    chosen = settings(
        gradient_clip=0.05,
        warmup_updates=2,
        total_updates=6,
        decay=LearningRateDecay.LINEAR,
        epsilon=1e-4,
        weight_decay=10.0,
    )
    built.engine.use_optimizer(chosen)
    reference = hugging_face(place)
    matrices = [p for p in reference.parameters() if p.ndim > 1]
    vectors = [p for p in reference.parameters() if p.ndim == 1]
    assert matrices and vectors
    adam = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": chosen.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        eps=1e-4,
    )
    prompts, responses = batch()
    for factor in (0.5, 1.0, 1.0, 0.75, 0.5, 0.25):
        assert abs(built.engine.learning_rate - 1e-3 * factor) < 1e-12
        norm = built.train()
        for prompt, response in zip(prompts.runs(), responses.runs(), strict=True):
            tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
            log_probs = reference(tokens[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
            loss = -log_probs.gather(1, tokens[len(prompt) :, None]).sum() / NUM_TOKENS
            loss.backward()
        expected_norm = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05))
        for group in adam.param_groups:
            group["lr"] = 1e-3 * factor
        adam.step()
        adam.zero_grad()
        # The oracle is on the CPU: a GPU adds in another order.
        allowed = 1e-5 if built.parallel.device.type == "cpu" else 1e-4
        assert abs(norm - expected_norm) < allowed * max(1.0, expected_norm), (norm, expected_norm)
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
    before = whole_weights(single)
    for built in (uneven, single):
        built.engine.use_optimizer(settings())
    everything = pieces(single, np.arange(6), 20)
    has_rows = uneven.parallel.at.data == 0
    own = [WeightedLoss(LANGUAGE, everything if has_rows else [], cross_entropy)]
    whole = [WeightedLoss(LANGUAGE, everything, cross_entropy)]
    for _ in range(2):
        norms = [uneven.engine.update(own), single.engine.update(whole)]
        assert_same_norm(*norms, setup.precision)
    assert_same_weights(uneven, single, before)


def rows_without_gradient_are_read_and_change_nothing(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    """Two terms, of which one has rows without a gradient, is the sum of what has one."""
    place = model_folder(kind, world, folder)
    parted, single = setup.build(place, world), fsdp_alone(place, world)
    before = whole_weights(single)
    seen = []

    def counted(outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        seen.append(len(part.rows))
        return cross_entropy(outputs, part)

    for built in (parted, single):
        built.engine.use_optimizer(settings())
    rows = rows_of(parted.parallel)
    halves = [pieces(parted, rows[rows < 4], 20), pieces(parted, rows[rows >= 4], 20)]
    terms = [
        WeightedLoss(LANGUAGE, halves[0], cross_entropy, no_grad_micro_batches=halves[1]),
        WeightedLoss(ReadLogProbs(0.5), halves[1], counted, no_grad_micro_batches=halves[0]),
    ]
    oracle = [
        WeightedLoss(LANGUAGE, pieces(single, np.arange(4), 20), cross_entropy),
        WeightedLoss(ReadLogProbs(0.5), pieces(single, np.arange(4, 6), 20), cross_entropy),
    ]
    for _ in range(2):
        norms = [parted.engine.update(terms), single.engine.update(oracle)]
        assert_same_norm(norms[0] / norms[1], 1.0, setup.precision)
    assert not parted.reads or sum(seen) >= 2 * len(rows)
    assert_same_weights(parted, single, before)


def split_comparisons_give_the_gradient_of_the_whole(
    world: World, folder: Path, setup: Setup, kind: str
) -> None:
    """Pairs of which a micro-batch has no room for both: losses, gradients and weights are those of
    FSDP on one rank with all pairs at once."""
    place = model_folder(kind, world, folder)
    parted, single = setup.build(place, world), fsdp_alone(place, world)
    for built in (parted, single):
        built.engine.use_optimizer(settings())
    share = GROUPS % parted.parallel.data_size == parted.parallel.at.data
    for tokens in (1, 20, 30, 1000):
        part, told = compared(parted, np.flatnonzero(share), tokens)
        whole, expected = compared(single, np.arange(len(GROUPS)), 1000)
        assert not whole.no_grad_micro_batches and bool(part.no_grad_micro_batches) == (
            tokens < 1000 and share.sum() > 1
        )
        norms = [parted.engine.update([part]), single.engine.update([whole])]
        assert abs(norms[0] - norms[1]) < 1e-5, (tokens, norms)
        loss = parted.parallel.sum(torch.tensor([told.statistics().means["actor/loss"][0]]))
        if parted.reads:
            difference = float(loss[0]) - expected.statistics().means["actor/loss"][0]
            assert abs(difference) < 1e-5, (tokens, loss, difference)
    assert_same_weights(parted, single)


def compared(
    built: Built, rows: NDArray[np.int64], max_tokens: int
) -> tuple[WeightedLoss, MetricAccumulator]:
    """The preference loss of some rows, whole groups of them."""
    prompts, responses = batch()
    reference = torch.linspace(-3, -1, len(responses.values)).numpy()
    columns = {
        "prompt_tokens": prompts,
        "response_tokens": responses,
        "preference": Column(PREFERENCE),
        "reference_log_probs": Column(reference, responses.lengths),
    }
    own = {name: column.take(rows) for name, column in columns.items()}
    lengths = own["response_tokens"].lengths
    assert lengths is not None
    part = MiniBatch(
        own,
        GROUPS[rows],
        torch.ones(len(rows), dtype=torch.bool),
        LossMask.from_columns(own, lengths, rows),
        Denominators(NUM_TOKENS, len(GROUPS), 1),
        1.0,
    )
    metrics = MetricAccumulator()
    loss_fn = DpoLossFn(part, Dpo("reference_log_probs"), built.parallel, "actor", metrics)
    whole, split = comparison_micro_batches(part, built.engine, max_tokens)
    loss_fn.comparison.mark_split(split)
    return WeightedLoss(LANGUAGE, whole + split, loss_fn, split), metrics


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
    built.engine.update([WeightedLoss(LANGUAGE, parts, cross_entropy)])
    assert len(ticks) >= len(parts)
