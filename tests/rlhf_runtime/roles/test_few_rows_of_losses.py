"""Every loss on batches of few rows, on one and on several ranks, against plain torch on all rows.

Ranks are threads, and the model is a table: what is tried is what roles do with rows, not a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast, get_args

import numpy as np
import pytest
import torch

from rlhf_api.calls import CallKind
from rlhf_api.plan import OffloadDepth
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.policy_loss import KlEstimator, LossAggregation, PolicyObjective
from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_flow.step.column_settings import columns_read_by
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_runtime.calls.reports import merge_statistics
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.roles import language_model, scalar_model
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.language_model import LanguageModelRole
from rlhf_runtime.roles.scalar_model import ScalarModelRole

from ..thread_ranks import ThreadRanks
from .bigram_engine import BigramEngine, Bigrams
from .few_rows import (
    BATCHES,
    MAX_RESPONSE,
    VOCABULARY,
    WORLD_SIZES,
    FewRows,
    in_order,
    inputs_of,
    some_batches,
)
from .plain_losses import Plain
from .plain_training import OLD, is_scalar, parts_of, role_of, train_plainly
from .scenario_tools import OPTIMIZER, ROUNDING, TEMPERATURE, close
from .small_batch import make_job

pytestmark = pytest.mark.slow

CUTS: dict[int, tuple[int, ...]] = {1: (1, 3), 3: (2,)}
"""World sizes to try, by number of mini-batches. More mini-batches than prompts leave some without
rows."""
OTHER_MODES = [mode for mode in LossAggregation if mode is not LossAggregation.TOKEN_MEAN]


def clipped(**settings: Any) -> ClippedLoss:
    return ClippedLoss("reward_valid", old_log_probs=OLD, **settings)


REFERENCE: dict[str, Any] = {"kl_coefficient": 0.2, "reference_log_probs": "reference_log_probs"}
LOSSES: tuple[Loss, ...] = (
    *(clipped(objective=objective) for objective in PolicyObjective),
    ValueLoss("reward_valid", "critic_values"),
    CrossEntropy(),
    BradleyTerry(epochs_per_batch=2),
    Dpo("reference_log_probs", beta=0.3, label_smoothing=0.1),
)
SETTINGS: tuple[Loss, ...] = (
    *(clipped(aggregation=mode) for mode in OTHER_MODES),
    *(clipped(kl_estimator=k, **REFERENCE) for k in KlEstimator if k is not KlEstimator.K1),
    clipped(entropy_coefficient=0.1, dual_clip=1.5),
    clipped(rejection_threshold=1.1, epochs_per_batch=2),
    *(ValueLoss("reward_valid", "critic_values", aggregation=mode) for mode in OTHER_MODES),
    ValueLoss("reward_valid", "critic_values", clip_range=0.2, epochs_per_batch=2),
    *(clipped(aggregation=mode, finished="finished") for mode in LossAggregation),
    clipped(rejection_threshold=1.1, entropy_coefficient=0.1, finished="finished"),
    ValueLoss("reward_valid", "critic_values", finished="finished"),
)
"""Settings that change the denominator of a loss or the columns that it reads."""
SOME_BATCHES = ("no rows", "one row", "one token", "one valid row", "all masked", "many rows")
CASES = {
    f"{type(loss).__name__}-{number}-{name}": (loss, BATCHES[name])
    for number, loss in enumerate((*LOSSES, *SETTINGS))
    for name in some_batches(number, tuple(BATCHES) if loss in LOSSES else SOME_BATCHES)
}


@dataclass(frozen=True)
class FewContext:
    """As far as roles without generation look at their context."""

    parallel: ParallelContext
    role: str
    micro_batch_tokens: ClassVar[int] = 8
    score_metric: ClassVar[str] = "reward/learned"
    folder: ClassVar[Path] = Path("model")
    job: ClassVar[RLHFJob] = make_job(Path("model"))
    role_plan: ClassVar[Any] = SimpleNamespace(offload=OffloadDepth.NOTHING, generates=False)


@pytest.fixture(autouse=True)
def table_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(context: FewContext, value_head: bool = False) -> BigramEngine:
        return BigramEngine(context.parallel, value_head)

    for module in (language_model, scalar_model):
        monkeypatch.setattr(module, "make_engine", make)


def role_on(ranks: ThreadRanks, rank: int, has_scalar: bool) -> LanguageModelRole | ScalarModelRole:
    name, kind = ("critic", ScalarModelRole) if has_scalar else ("actor", LanguageModelRole)
    return kind(cast(RoleContext, FewContext(ranks.parallel(rank), name)))


def trained(
    batch: FewRows, size: int, count: int, loss: Loss, texts: FewRows | None = None
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Metrics, and the weights of every rank.

    Args:
        batch: that is trained on.
        size: ranks.
        count: mini-batches.
        loss: on the batch.
        texts: of a cross-entropy beside it.
    """
    columns, ranks = batch.columns, ThreadRanks(size)
    call = ModelCall(
        "train",
        role_of(loss),
        "train",
        CallKind.TRAIN,
        tuple(sorted(columns_read_by(loss, columns))),
        (),
        options=TrainOptions(loss, 0, () if texts is None else (BESIDE,)),
        auxiliary_reads=() if texts is None else (BESIDE.reads,),
    )

    def on_rank(rank: int) -> tuple[Result, torch.Tensor]:
        role = role_on(ranks, rank, is_scalar(loss))
        assert isinstance(role.engine, BigramEngine)
        role.engine.use_optimizer(OPTIMIZER)
        result = role.train(inputs_of(batch, columns, call, rank, size, count, texts))
        return result, role.engine.module.weight.detach()

    made = ranks.run(on_rank)
    return merge_statistics([result.statistics for result, _ in made]), [
        weight for _, weight in made
    ]


def reference_of(batch: FewRows, has_scalar: bool) -> Plain:
    module = Bigrams(1 if has_scalar else VOCABULARY)
    return Plain(module, batch.columns, TEMPERATURE, MAX_RESPONSE, OPTIMIZER)


def test_every_loss_is_in_the_table() -> None:
    assert {type(loss) for loss in LOSSES} == set(get_args(Loss))


@pytest.mark.parametrize(("loss", "batch"), CASES.values(), ids=CASES)
def test_a_loss_trains_by_the_formula(loss: Loss, batch: FewRows) -> None:
    is_cut = not isinstance(loss, CrossEntropy)  # alone it is of the whole batch
    for count, sizes in CUTS.items() if is_cut else [(1, WORLD_SIZES)]:
        reference = reference_of(batch, is_scalar(loss))
        check = train_plainly(reference, batch, count, loss)
        weight = next(reference.module.parameters()).detach()
        for size in sizes:
            metrics, weights = trained(batch, size, count, loss)
            assert all(map(isfinite, metrics.values())), (size, count, metrics)
            check(metrics)
            for of_rank in weights:
                assert torch.allclose(of_rank, weight, rtol=0, atol=ROUNDING), (size, count)


BESIDE = CrossEntropy(weight=0.3)


@pytest.mark.parametrize("texts", BATCHES.values(), ids=BATCHES)
def test_texts_beside_a_policys_loss_are_few(texts: FewRows) -> None:
    batch, loss, texts = BATCHES["one valid row"], clipped(), replace(texts, mask=None)
    for count, sizes in CUTS.items():
        reference = reference_of(batch, False)
        other = replace(reference, columns=texts.columns)
        losses = reference.policy_losses(loss, OLD, False)
        valid, entropies = reference.columns["reward_valid"].values, []
        parts = zip(parts_of(batch, count), parts_of(texts, count), strict=True)
        for rows, rows_beside in parts:
            own = [losses(row) for row in rows if valid[row] and reference.own(row).any()]
            beside = [other.supervised_losses(row) for row in rows_beside if len(other.own(row))]
            total = reference.nothing()
            if own:
                total = total + torch.cat(own).mean()
            if beside:
                entropies.append(float(torch.cat(beside).mean().detach()))
                total = total + BESIDE.weight * torch.cat(beside).mean()
            if own or beside:
                reference.step(total)
            else:
                reference.leave_out()
        weight = next(reference.module.parameters()).detach()
        for size in sizes:
            metrics, weights = trained(batch, size, count, loss, texts)
            assert all(map(isfinite, metrics.values())), (size, count, metrics)
            assert metrics.get("actor/empty_updates", 0) == reference.num_left_out
            assert ("actor/cross_entropy" in metrics) == bool(entropies)
            if entropies:
                close(metrics["actor/cross_entropy"], float(np.mean(entropies)), "cross-entropy")
            norm = float(np.mean(reference.norms))
            close(metrics["actor/gradient_norm"], norm, "gradient norm")
            for of_rank in weights:
                assert torch.allclose(of_rank, weight, rtol=0, atol=ROUNDING), (size, count)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("method", ["log_probs", "values", "scores"])
def test_inference_reads_rows_as_they_are(method: str, batch: FewRows) -> None:
    columns, has_scalar = batch.columns, method != "log_probs"
    reads = ("prompt_tokens", "response_tokens")
    call = ModelCall("infer", "role", method, CallKind.INFER, reads, ("made",))
    reference = reference_of(replace(batch, mask=None), has_scalar)
    with torch.no_grad():
        rows = range(batch.shape.num_rows)
        plain: list[Any] = {
            "log_probs": lambda: [reference.log_probs(row).tolist() for row in rows],
            "values": lambda: [reference.outputs(row)[:, 0].tolist() for row in rows],
            "scores": lambda: [reference.all_outputs(row)[-1].tolist() for row in rows],
        }[method]()
    for size in WORLD_SIZES:
        ranks = ThreadRanks(size)

        def on_rank(rank: int, ranks: ThreadRanks = ranks) -> Result:
            role = role_on(ranks, rank, has_scalar)
            inputs = inputs_of(batch, columns, call, rank, ranks.size)
            result: Result = getattr(role, method)(inputs)
            return result

        results = ranks.run(on_rank)
        shards = [(made.index, made.columns) for made in results if made.index is not None]
        for got, want in zip(in_order(shards, "made"), plain, strict=True):
            assert got == pytest.approx(want, abs=1e-5)
        metrics = merge_statistics([made.statistics for made in results])
        has_mean = method == "scores" and batch.shape.num_rows > 0
        assert metrics.keys() == ({"reward/learned"} if has_mean else set())
        if has_mean:
            mean = float(np.mean([score for (score,) in plain]))
            close(metrics["reward/learned"], mean, "score")
