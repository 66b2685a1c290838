"""The numerics behind `flow.compute`: from an operation to its function on columns."""

from __future__ import annotations

import numpy as np
import torch

from rlhf_flow.step.calls import ComputeOptions
from rlhf_flow.step.columns import RECORD, RESPONSE_MASK, RESPONSE_TEXT, column_role
from rlhf_flow.step.operations import (
    AboveBaseline,
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
from rlhf_runtime.dataplane.columns import Column, Rows, pack_texts
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.numerics.constraints import learned_multiplier, penalized_advantages
from rlhf_runtime.numerics.gae import generalized_advantages, rewards_to_go
from rlhf_runtime.numerics.groups import group_advantages, mixed_groups, pass_at_k
from rlhf_runtime.numerics.kl import kl_estimate
from rlhf_runtime.numerics.moments import (
    Reduce,
    explained_variance,
    on_this_rank,
    whiten,
)
from rlhf_runtime.numerics.padding import length_mask, pad, unpad
from rlhf_runtime.numerics.preferences import best_against_worst
from rlhf_runtime.numerics.rewards import (
    overlong_penalties,
    penalized_scores,
    token_rewards,
    weighted_sum,
)
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.custom_operation import OperationState, run_custom
from rlhf_runtime.roles.own_tokens import OwnTokens
from rlhf_runtime.roles.pair_lines import Response, pair_lines
from rlhf_runtime.roles.sequences import RESPONSES, as_tensor, lengths_of
from rlhf_runtime.roles.training import Means
from rlhf_runtime.workers.inputs import Inputs


class Workspace:
    """The columns that a compute call works on, with the means it collects."""

    def __init__(
        self,
        columns: dict[str, Column],
        numbers: Rows,
        groups: np.ndarray,
        sum: Reduce,
        means: Means,
        state: OperationState,
        step: int,
    ) -> None:
        self.columns = columns
        self.numbers = numbers
        """Of the rows in the batch."""
        self.groups = torch.tensor(groups)
        self.sum = sum
        """Over all ranks that share the batch."""
        self.means = means
        self.state = state
        self.step = step

    def rows(self, name: str) -> torch.Tensor:
        """A column with one value per row."""
        return as_tensor(self.columns[name])

    def padded(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """A ragged column as [rows, longest], and the mask of its tokens that count."""
        column = self.columns[name]
        return pad(as_tensor(column), lengths_of(column))[0], self.mask(name)

    def mask(self, name: str) -> torch.Tensor:
        """bool[rows, longest]: which tokens of a ragged column count.

        Raises:
            UserCodeFailed: a response mask that is none.
        """
        column = self.columns[name]
        assert column.lengths is not None
        own = OwnTokens.of(self.columns, column.lengths, self.numbers)
        return pad(own.flags, lengths_of(column))[0]

    def put(self, name: str, padded: torch.Tensor, mask: torch.Tensor) -> None:
        """Store a ragged column from [rows, longest], with 0 on tokens that do not count.

        Args:
            name: the column's.
            padded: its values; one for all tokens of a row will do.
            mask: which tokens count.
        """
        whole = self.columns.get(RESPONSE_MASK)
        present = mask if whole is None else length_mask(lengths_of(whole))
        values = unpad(torch.where(mask, padded.float(), 0.0), present)
        self.columns[name] = Column(values.numpy(), present.sum(dim=1).to(torch.int32).numpy())

    def put_rows(self, name: str, values: torch.Tensor) -> None:
        """Store a column with one value per row."""
        kept = values.to(torch.int8) if values.dtype is torch.bool else values.float()
        self.columns[name] = Column(kept.numpy())


def compute(inputs: Inputs, parallel: ParallelContext, state: OperationState) -> Result:
    """Run a compute call's operations one after the other, each rank on its own rows.

    A custom operation that has to see the whole batch does so on every rank; of what the call makes
    each rank keeps its own rows.

    Args:
        inputs: of the call.
        parallel: the ranks that share the batch.
        state: what operations keep from step to step; they change it.
    """
    options = inputs.call.options
    assert isinstance(options, ComputeOptions)
    own = inputs.rows()
    sees_all = options.sees_all
    rows = inputs.index.rows if sees_all else own
    means = Means()
    columns, groups = dict(inputs.load(rows)), inputs.index.find(rows).groups
    reduce = on_this_rank if sees_all else parallel.sum
    workspace = Workspace(columns, rows, groups, reduce, means, state, inputs.step)
    for operation in options.operations:
        _run(workspace, operation)
    written = {name: workspace.columns[name] for name in inputs.call.writes}
    if sees_all:
        written = {name: column.take(own) for name, column in written.items()}
    return Result(written, means.statistics(), inputs.index.find(own))


def _run(work: Workspace, operation: Operation) -> None:
    match operation:
        case TokenRewards():
            _token_rewards(work, operation)
        case Gae():
            _gae(work, operation)
        case Whiten():
            _whiten(work, operation)
        case GroupAdvantages():
            _group_advantages(work, operation)
        case RewardsToGo():
            rewards, mask = work.padded(operation.rewards)
            work.put(operation.advantages, rewards_to_go(rewards, mask, operation.gamma), mask)
        case AboveBaseline():
            _above_baseline(work, operation)
        case PenalizedScores():
            _penalized_scores(work, operation)
        case OverlongPenalty():
            _overlong_penalty(work, operation)
        case MixedGroups():
            scores, valid = work.rows(operation.scores), work.rows(operation.valid).bool()
            work.put_rows(operation.mixed, mixed_groups(scores, work.groups, valid))
        case EnoughGroups():
            _enough_groups(work, operation)
        case PassAtK():
            _pass_at_k(work, operation)
        case BothValid():
            both = work.rows(operation.first).bool() & work.rows(operation.second).bool()
            work.put_rows(operation.both, both)
        case BestAgainstWorst():
            _best_against_worst(work, operation)
        case PairLines():
            _pair_lines(work, operation)
        case LagrangeMultiplier():
            _lagrange_multiplier(work, operation)
        case PenalizedAdvantages():
            _penalized_advantages(work, operation)
        case WeightedSum():
            _weighted_sum(work, operation)
        case Custom():
            work.columns.update(run_custom(operation, work.columns, len(work.groups), work.state))


def _weighted_sum(work: Workspace, operation: WeightedSum) -> None:
    total = weighted_sum(list(map(work.rows, operation.terms)), list(operation.terms.values()))
    counts = torch.ones(len(total), dtype=torch.bool)
    if operation.counted is not None:
        counts = work.rows(operation.counted).bool()
    work.put_rows(operation.scores, torch.where(counts, total, 0.0))
    work.put_rows(operation.valid, counts)
    role, kept = column_role(operation.scores), total[counts]
    work.means.add(f"{role}/mean", float(kept.double().sum()), float(len(kept)))
    work.means.spread(f"{role}/std", kept)


def _token_rewards(work: Workspace, operation: TokenRewards) -> None:
    mask, kl = work.mask(RESPONSES), None
    if operation.kl_coefficient > 0:
        assert operation.reference_log_probs is not None
        own, _ = work.padded(operation.policy_log_probs)
        reference, _ = work.padded(operation.reference_log_probs)
        kl = kl_estimate(own, reference, operation.kl_estimator)
        _note_kl(work, operation.scores, kl, mask)
    scores = work.rows(operation.scores)
    work.put(operation.rewards, token_rewards(scores, mask, kl, operation.kl_coefficient), mask)


def _note_kl(work: Workspace, scores: str, kl: torch.Tensor, mask: torch.Tensor) -> None:
    """The mean KL per token, among the metrics of the reward that it is taken off."""
    work.means.add(f"{column_role(scores)}/kl", float(kl[mask].double().sum()), float(mask.sum()))


def _gae(work: Workspace, operation: Gae) -> None:
    rewards, mask = work.padded(operation.rewards)
    values, _ = work.padded(operation.values)
    advantages, returns = generalized_advantages(
        rewards, values, mask, operation.gamma, operation.lam
    )
    work.put(operation.advantages, advantages, mask)
    work.put(operation.returns, returns, mask)
    critic = column_role(operation.values)
    work.means.add(f"{critic}/value_mean", float(values[mask].double().sum()), float(mask.sum()))
    explained = float(explained_variance(values, returns, mask, work.sum))
    work.means.add(f"{critic}/explained_variance", explained, 1.0)  # of all ranks: the same


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
    work.means.add("groups/equal", float(result.num_without_signal), float(result.num_groups))
    work.put(operation.advantages, result.advantages[:, None], mask)


def _above_baseline(work: Workspace, operation: AboveBaseline) -> None:
    advantages, mask = work.padded(operation.advantages)
    has_baseline = work.rows(operation.has_baseline).bool()[:, None]
    above = advantages - work.rows(operation.baseline)[:, None]
    work.put(operation.advantages, torch.where(has_baseline, above, 0.0), mask)


def _penalized_scores(work: Workspace, operation: PenalizedScores) -> None:
    own, mask = work.padded(operation.policy_log_probs)
    reference, _ = work.padded(operation.reference_log_probs)
    kl = kl_estimate(own, reference, operation.kl_estimator)
    _note_kl(work, operation.scores, kl, mask)
    scores = work.rows(operation.scores)
    penalized = penalized_scores(scores, mask, kl, operation.kl_coefficient)
    work.put_rows(operation.penalized, penalized)


def _overlong_penalty(work: Workspace, operation: OverlongPenalty) -> None:
    lengths = lengths_of(work.columns[RESPONSES])
    lost = overlong_penalties(lengths, operation.longest, operation.margin, operation.penalty)
    name = f"{column_role(operation.scores)}/overlong_penalty"
    work.means.add(name, float(lost.double().sum()), float(len(lost)))
    work.put_rows(operation.shaped, work.rows(operation.scores) - lost)


def _enough_groups(work: Workspace, operation: EnoughGroups) -> None:
    counted = work.groups[work.rows(operation.counted).bool()]
    own = torch.tensor([len(torch.unique(counted))], dtype=torch.float64)
    (found,) = work.sum(own).tolist()
    answer = torch.full((len(work.groups),), found >= operation.num_groups)
    work.put_rows(operation.enough, answer)


def _best_against_worst(work: Workspace, operation: BestAgainstWorst) -> None:
    valid = work.rows(operation.valid).bool()
    found = best_against_worst(work.rows(operation.scores), work.groups, valid)
    work.means.add("groups/equal", float(found.num_groups - found.num_pairs), found.num_groups)
    work.columns[operation.preference] = Column(found.preference.numpy())


def _pair_lines(work: Workspace, operation: PairLines) -> None:
    preference = work.rows(operation.preference)
    rows = preference.nonzero()[:, 0]  # the others are in no pair
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
    found = pair_lines(list(responses), operation.prompt_field, work.step)
    for row, text in zip(rows.tolist(), found, strict=True):
        lines[row] = text
    work.columns[operation.lines] = pack_texts(lines)


def _pass_at_k(work: Workspace, operation: PassAtK) -> None:
    passed = work.rows(operation.scores) >= operation.threshold
    valid = work.rows(operation.valid).bool()
    for k in operation.ks:
        found = pass_at_k(passed, work.groups, valid, k)
        name = f"{column_role(operation.scores)}/pass_at_{k}"
        work.means.add(name, float(found.sum()), float(len(found)))
    work.put_rows(operation.passed, passed & valid)


def _lagrange_multiplier(work: Workspace, operation: LagrangeMultiplier) -> None:
    costs = work.rows(operation.costs)
    begin = torch.tensor(operation.initial, dtype=torch.float64)
    multiplier = work.state[operation.multiplier] = learned_multiplier(
        work.state.get(operation.multiplier, begin),
        costs,
        work.rows(operation.valid).bool(),
        operation.limit,
        operation.learning_rate,
        operation.maximum,
        work.sum,
    )
    work.means.add(f"{column_role(operation.costs)}/multiplier", float(multiplier), 1.0)
    values = np.full(len(costs), float(multiplier), dtype=np.float32)
    work.columns[operation.multiplier] = Column(values)


def _penalized_advantages(work: Workspace, operation: PenalizedAdvantages) -> None:
    advantages, mask = work.padded(operation.advantages)
    costs, _ = work.padded(operation.costs)
    multiplier = work.rows(operation.multiplier)[:, None]
    work.put(operation.advantages, penalized_advantages(advantages, costs, multiplier), mask)
