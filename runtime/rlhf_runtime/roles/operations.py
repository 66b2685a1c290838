"""Runs the operations of `flow.compute` on a batch's columns.

`OPERATIONS`, at the end, maps each operation to the function that runs it. Such a function reads
columns as tensors, calls `rlhf_runtime.numerics` and stores the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from rlhf_flow.step.calls import ComputeOptions
from rlhf_flow.step.columns import RECORD, RESPONSE_TEXT, column_role
from rlhf_flow.step.operations import (
    AboveBaseline,
    AdaptiveKlCoefficient,
    AddTurnAdvantages,
    AddTurnRewards,
    BestAgainstWorst,
    BothValid,
    Custom,
    EnoughGroups,
    Gae,
    GroupAdvantages,
    LagrangeMultiplier,
    MixedGroups,
    Operation,
    OverlongPenalty,
    PairLines,
    PassAtK,
    PenalizedAdvantages,
    PenalizedScores,
    RewardsToGo,
    TokenRewards,
    WeightedSum,
    Whiten,
)
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.data.row_record import rows_by_source
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.numerics.advantages import (
    generalized_advantages,
    learned_multiplier,
    penalized_advantages,
    rewards_to_go,
)
from rlhf_runtime.numerics.group_advantages import group_advantages, mixed_groups, pass_at_k
from rlhf_runtime.numerics.losses import kl_estimate
from rlhf_runtime.numerics.moments import (
    explained_variance,
    no_reduce,
    whiten,
)
from rlhf_runtime.numerics.preferences import best_against_worst
from rlhf_runtime.numerics.rewards import (
    adapted_kl_coefficient,
    overlong_penalties,
    penalized_scores,
    token_rewards,
    weighted_sum,
)
from rlhf_runtime.numerics.turn_advantages import turn_advantages
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.custom_operation import OperationState, run_custom
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.pair_lines import Response, pair_lines
from rlhf_runtime.roles.sequences import RESPONSES, lengths_of
from rlhf_runtime.roles.workspace import Workspace


def compute(inputs: CallInputs, parallel: ParallelContext, state: OperationState) -> Result:
    """Run a compute call's operations one after the other, each rank on its own rows.

    If a custom operation needs the complete batch, every rank computes all rows and keeps its own.

    Args:
        inputs: of the call.
        parallel: the ranks that share the batch.
        state: state that operations keep between steps; updated.
    """
    options = inputs.call.options
    assert isinstance(options, ComputeOptions)
    own = inputs.rows()
    sees_all = options.sees_all
    rows = inputs.index.rows if sees_all else own
    metrics = MetricAccumulator()
    columns, groups = dict(inputs.load(rows)), inputs.index.find(rows).groups
    # With all rows on every rank there is nothing to sum over ranks.
    reduce = no_reduce if sees_all else parallel.sum
    workspace = Workspace(columns, rows, groups, reduce, metrics, state, inputs.step)
    for operation in options.operations:
        OPERATIONS[type(operation)](workspace, operation)
    written = {name: workspace.columns[name] for name in inputs.call.writes}
    if sees_all:
        written = {name: column.take(own) for name, column in written.items()}
    return Result(written, metrics.statistics(), inputs.index.find(own))


def _weighted_sum(work: Workspace, operation: WeightedSum) -> None:
    total = weighted_sum(list(map(work.rows, operation.terms)), list(operation.terms.values()))
    # Rows that do not count get score 0, and no part in the metrics.
    counts = torch.ones(len(total), dtype=torch.bool)
    if operation.counted is not None:
        counts = work.rows(operation.counted).bool()
    work.put_rows(operation.scores, torch.where(counts, total, 0.0))
    work.put_rows(operation.valid, counts)
    role, counted = column_role(operation.scores), total[counts]
    work.metrics.record_mean(f"{role}/mean", float(counted.double().sum()), float(len(counted)))
    work.metrics.record_spread(f"{role}/std", counted)


def _adaptive_kl_coefficient(work: Workspace, operation: AdaptiveKlCoefficient) -> None:
    own, mask = work.padded(operation.policy_log_probs)
    reference, _ = work.padded(operation.reference_log_probs)
    kl = torch.where(mask, kl_estimate(own, reference, operation.kl_estimator), 0.0).sum(dim=1)
    # The first step has no state yet.
    initial = torch.tensor(operation.initial, dtype=torch.float64)
    coefficient = work.state.get(operation.coefficient, initial)
    # This step's KL changes the coefficient of the next one.
    work.state[operation.coefficient] = adapted_kl_coefficient(
        coefficient, kl, operation.target, operation.horizon, work.sum
    )
    role = column_role(operation.reference_log_probs)
    work.metrics.record_mean(f"{role}/response_kl", float(kl.double().sum()), float(len(kl)))
    work.metrics.record_mean(f"{role}/kl_coefficient", float(coefficient), 1.0)
    values = np.full(len(kl), float(coefficient), dtype=np.float32)
    work.columns[operation.coefficient] = Column(values)


def _kl_weight(work: Workspace, operation: TokenRewards | PenalizedScores) -> float | torch.Tensor:
    """Return the weight of the KL penalty, or that of each row."""
    if operation.adaptive_coefficient is None:
        return operation.kl_coefficient
    return work.rows(operation.adaptive_coefficient)


def _token_rewards(work: Workspace, operation: TokenRewards) -> None:
    mask, kl, weight = work.mask(RESPONSES), None, _kl_weight(work, operation)
    if operation.kl_coefficient > 0:
        assert operation.reference_log_probs is not None and operation.kl_estimator is not None
        own, _ = work.padded(operation.policy_log_probs)
        reference, _ = work.padded(operation.reference_log_probs)
        kl = kl_estimate(own, reference, operation.kl_estimator)
        _record_kl(work, operation.scores, kl, mask)
    scores = work.rows(operation.scores)
    if isinstance(weight, torch.Tensor):
        weight = weight[:, None]
    work.put(operation.rewards, token_rewards(scores, mask, kl, weight), mask)


def _record_kl(work: Workspace, scores: str, kl: torch.Tensor, mask: torch.Tensor) -> None:
    """Record the mean KL per token, as a metric of the reward that it penalizes."""
    work.metrics.record_mean(
        f"{column_role(scores)}/kl", float(kl[mask].double().sum()), float(mask.sum())
    )


def _gae(work: Workspace, operation: Gae) -> None:
    rewards, mask = work.padded(operation.rewards)
    values, _ = work.padded(operation.values)
    advantages, returns = generalized_advantages(
        rewards, values, mask, operation.gamma, operation.lam
    )
    work.put(operation.advantages, advantages, mask)
    work.put(operation.returns, returns, mask)
    critic = column_role(operation.values)
    work.metrics.record_mean(
        f"{critic}/value_mean", float(values[mask].double().sum()), float(mask.sum())
    )
    explained = float(explained_variance(values, returns, mask, work.sum))
    work.metrics.record_mean(f"{critic}/explained_variance", explained, 1.0)  # equal on all ranks


def _whiten(work: Workspace, operation: Whiten) -> None:
    advantages, mask = work.padded(operation.advantages)
    valid = mask & work.rows(operation.valid).bool()[:, None]
    work.put(operation.advantages, whiten(advantages, valid, work.sum), mask)


def _group_advantages(work: Workspace, operation: GroupAdvantages) -> None:
    mask = work.mask(RESPONSES)
    result = group_advantages(
        work.rows(operation.scores),
        work.groups,
        work.rows(operation.valid).bool(),
        operation.normalize_by_std,
        operation.baseline,
        mask.sum(dim=1),
    )
    work.metrics.record_mean(
        "groups/equal", float(result.num_without_signal), float(result.num_groups)
    )
    # Every token gets its response's advantage.
    work.put(operation.advantages, result.advantages[:, None], mask)


def _add_turn_rewards(work: Workspace, operation: AddTurnRewards) -> None:
    rewards, mask = work.padded(operation.rewards)
    further, _ = work.padded(operation.turn_rewards)
    work.put(operation.rewards, rewards + operation.weight * further, mask)


def _add_turn_advantages(work: Workspace, operation: AddTurnAdvantages) -> None:
    advantages, mask = work.padded(operation.advantages)
    rewards, _ = work.padded(operation.turn_rewards)
    further = turn_advantages(
        operation.weight * rewards,
        mask,
        work.groups,
        work.rows(operation.valid).bool(),
        operation.discount,
        operation.normalize_by_std,
    )
    work.put(operation.advantages, advantages + further, mask)


def _rewards_to_go(work: Workspace, operation: RewardsToGo) -> None:
    rewards, mask = work.padded(operation.rewards)
    work.put(operation.advantages, rewards_to_go(rewards, mask, operation.gamma), mask)


def _above_baseline(work: Workspace, operation: AboveBaseline) -> None:
    advantages, mask = work.padded(operation.advantages)
    has_baseline = work.rows(operation.has_baseline).bool()[:, None]
    above = advantages - work.rows(operation.baseline)[:, None]
    # Without a baseline there is nothing to compare with.
    work.put(operation.advantages, torch.where(has_baseline, above, 0.0), mask)


def _penalized_scores(work: Workspace, operation: PenalizedScores) -> None:
    own, mask = work.padded(operation.policy_log_probs)
    reference, _ = work.padded(operation.reference_log_probs)
    kl = kl_estimate(own, reference, operation.kl_estimator)
    _record_kl(work, operation.scores, kl, mask)
    scores = work.rows(operation.scores)
    penalized = penalized_scores(scores, mask, kl, _kl_weight(work, operation))
    work.put_rows(operation.penalized, penalized)


def _overlong_penalty(work: Workspace, operation: OverlongPenalty) -> None:
    lengths = lengths_of(work.columns[RESPONSES])
    penalties = overlong_penalties(lengths, operation.longest, operation.margin, operation.penalty)
    name = f"{column_role(operation.scores)}/overlong_penalty"
    work.metrics.record_mean(name, float(penalties.double().sum()), float(len(penalties)))
    work.put_rows(operation.shaped, work.rows(operation.scores) - penalties)


def _mixed_groups(work: Workspace, operation: MixedGroups) -> None:
    scores, valid = work.rows(operation.scores), work.rows(operation.valid).bool()
    work.put_rows(operation.mixed, mixed_groups(scores, work.groups, valid))


def _enough_groups(work: Workspace, operation: EnoughGroups) -> None:
    counted = work.groups[work.rows(operation.counted).bool()]
    # A group lies on one rank entirely, so the ranks' counts add up.
    own = torch.tensor([len(torch.unique(counted))], dtype=torch.float64)
    (num_groups,) = work.sum(own).tolist()
    enough = torch.full((len(work.groups),), num_groups >= operation.num_groups)
    work.put_rows(operation.enough, enough)


def _best_against_worst(work: Workspace, operation: BestAgainstWorst) -> None:
    valid = work.rows(operation.valid).bool()
    result = best_against_worst(work.rows(operation.scores), work.groups, valid)
    num_equal = float(result.num_groups - result.num_pairs)
    work.metrics.record_mean("groups/equal", num_equal, result.num_groups)
    work.columns[operation.preference] = Column(result.preference.numpy())


def _pair_lines(work: Workspace, operation: PairLines) -> None:
    preference = work.rows(operation.preference)
    rows = preference.nonzero()[:, 0]  # other rows are in no pair
    records, texts = (work.columns[name].take(rows.numpy()) for name in (RECORD, RESPONSE_TEXT))
    responses = map(
        Response,
        work.groups[rows].tolist(),
        records.texts(),
        texts.texts(),
        work.rows(operation.scores)[rows].tolist(),
        preference[rows].tolist(),
    )
    lines = [""] * len(preference)
    written = pair_lines(list(responses), operation.prompt_field, work.step)
    for row, text in zip(rows.tolist(), written, strict=True):
        lines[row] = text
    work.columns[operation.lines] = pack_texts(lines)


def _pass_at_k(work: Workspace, operation: PassAtK) -> None:
    passed = work.rows(operation.scores) >= operation.threshold
    valid = work.rows(operation.valid).bool()
    role = column_role(operation.scores)
    by_source = rows_by_source(work.columns[RECORD].texts())
    parts = {role: list(range(len(passed)))}
    parts |= {f"{role}/{source}": rows for source, rows in by_source.items()}
    for name, rows in parts.items():
        for k in operation.ks:
            estimates = pass_at_k(passed[rows], work.groups[rows], valid[rows], k)
            work.metrics.record_mean(
                f"{name}/pass_at_{k}", float(estimates.sum()), float(len(estimates))
            )
    work.put_rows(operation.passed, passed & valid)


def _both_valid(work: Workspace, operation: BothValid) -> None:
    both = work.rows(operation.first).bool() & work.rows(operation.second).bool()
    work.put_rows(operation.both, both)


def _lagrange_multiplier(work: Workspace, operation: LagrangeMultiplier) -> None:
    costs = work.rows(operation.costs)
    # The first step has no state yet.
    initial = torch.tensor(operation.initial, dtype=torch.float64)
    multiplier = work.state[operation.multiplier] = learned_multiplier(
        work.state.get(operation.multiplier, initial),
        costs,
        work.rows(operation.valid).bool(),
        operation.limit,
        operation.learning_rate,
        operation.maximum,
        work.sum,
    )
    work.metrics.record_mean(f"{column_role(operation.costs)}/multiplier", float(multiplier), 1.0)
    values = np.full(len(costs), float(multiplier), dtype=np.float32)
    work.columns[operation.multiplier] = Column(values)


def _penalized_advantages(work: Workspace, operation: PenalizedAdvantages) -> None:
    advantages, mask = work.padded(operation.advantages)
    costs, _ = work.padded(operation.costs)
    multiplier = work.rows(operation.multiplier)[:, None]
    work.put(operation.advantages, penalized_advantages(advantages, costs, multiplier), mask)


def _custom(work: Workspace, operation: Custom) -> None:
    work.columns.update(run_custom(operation, work.columns, len(work.groups), work.state))


OPERATIONS: Mapping[type[Operation], Callable[[Workspace, Any], None]] = {
    TokenRewards: _token_rewards,
    AddTurnRewards: _add_turn_rewards,
    AddTurnAdvantages: _add_turn_advantages,
    Gae: _gae,
    Whiten: _whiten,
    GroupAdvantages: _group_advantages,
    RewardsToGo: _rewards_to_go,
    AboveBaseline: _above_baseline,
    AdaptiveKlCoefficient: _adaptive_kl_coefficient,
    PenalizedScores: _penalized_scores,
    OverlongPenalty: _overlong_penalty,
    MixedGroups: _mixed_groups,
    EnoughGroups: _enough_groups,
    PassAtK: _pass_at_k,
    BothValid: _both_valid,
    BestAgainstWorst: _best_against_worst,
    PairLines: _pair_lines,
    LagrangeMultiplier: _lagrange_multiplier,
    PenalizedAdvantages: _penalized_advantages,
    WeightedSum: _weighted_sum,
    Custom: _custom,
}
"""The function that runs each operation, in place on a workspace."""
