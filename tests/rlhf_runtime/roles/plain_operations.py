"""Every built-in operation written once more: all rows of a batch in one list, in plain Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import exp, sqrt
from typing import Any

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow.step.columns import column_role
from rlhf_flow.step.operations import (
    AboveBaseline,
    AdaptiveKlCoefficient,
    AddTurnAdvantages,
    AddTurnRewards,
    BestAgainstWorst,
    BothValid,
    EnoughGroups,
    Gae,
    GroupAdvantages,
    GroupBaseline,
    LagrangeMultiplier,
    MixedGroups,
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
from rlhf_runtime.dataplane.columns import Column

STEP = 1


@dataclass
class PlainRow:
    """A row with its values by column: a number, or a list with one for each token."""

    number: int
    group: int
    own: list[int]
    """Positions of the tokens that count."""
    num_tokens: int
    values: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def put_tokens(self, name: str, values: Mapping[int, float]) -> None:
        """Values by position; 0 on all other tokens."""
        self.values[name] = [values.get(token, 0.0) for token in range(self.num_tokens)]


@dataclass
class PlainBatch:
    """All rows, and what is noted of them."""

    rows: list[PlainRow]
    noted: dict[str, list[float]] = field(default_factory=dict)
    """Numbers of which a metric is the mean, by its name."""
    spread: dict[str, list[float]] = field(default_factory=dict)
    """Numbers of which a metric is the standard deviation."""

    @classmethod
    def of(cls, columns: Mapping[str, Column], groups: Sequence[int]) -> PlainBatch:
        lengths = columns["response_tokens"].lengths
        assert lengths is not None
        rows = []
        for number, group in enumerate(groups):
            values = {name: value_at(column, number) for name, column in columns.items()}
            flags = values.get("response_mask", [1] * int(lengths[number]))
            own = [token for token, flag in enumerate(flags) if flag]
            rows.append(PlainRow(number, int(group), own, int(lengths[number]), values))
        return cls(rows)

    def groups(self) -> list[list[PlainRow]]:
        """Rows by prompt."""
        numbers = sorted({row.group for row in self.rows})
        return [[row for row in self.rows if row.group == number] for number in numbers]

    def note(self, name: str, values: Sequence[float]) -> None:
        self.noted.setdefault(name, []).extend(values)

    def metrics(self) -> dict[str, float]:
        """Means and spreads of what was noted; none without values."""
        means = {name: mean(values) for name, values in self.noted.items() if values}
        spreads = {
            name: sqrt(mean([(x - mean(values)) ** 2 for x in values]))
            for name, values in self.spread.items()
            if values
        }
        return means | spreads


def value_at(column: Column, row: int) -> Any:
    if column.lengths is None:
        return column.values[row].item()
    start = int(column.lengths[:row].sum())
    return column.values[start : start + int(column.lengths[row])].tolist()


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Bessel-corrected; 0 of fewer than two."""
    if len(values) < 2:
        return 0.0
    return sum((x - mean(values)) ** 2 for x in values) / (len(values) - 1)


def kl_of(
    row: PlainRow, operation: TokenRewards | PenalizedScores | AdaptiveKlCoefficient
) -> dict[int, float]:
    """By token that counts."""
    assert operation.reference_log_probs is not None
    own, reference = row[operation.policy_log_probs], row[operation.reference_log_probs]
    estimates = {}
    for token in row.own:
        d = own[token] - reference[token]
        by = {KlEstimator.K1: d, KlEstimator.K2: d * d / 2, KlEstimator.K3: exp(-d) - 1 + d}
        assert operation.kl_estimator is not None
        estimates[token] = by[operation.kl_estimator]
    return estimates


def discounted(terms: Sequence[float], decay: float) -> list[float]:
    """Discounted sum from each term to the end."""
    return [
        sum(decay ** (later - first) * terms[later] for later in range(first, len(terms)))
        for first in range(len(terms))
    ]


def adaptive_kl_coefficient(batch: PlainBatch, operation: AdaptiveKlCoefficient) -> None:
    totals = [sum(kl_of(row, operation).values()) for row in batch.rows]
    role = column_role(operation.reference_log_probs)
    batch.note(f"{role}/response_kl", totals)
    batch.note(f"{role}/kl_coefficient", [operation.initial])
    for row in batch.rows:
        row.values[operation.coefficient] = operation.initial


def kl_weight(row: PlainRow, operation: TokenRewards | PenalizedScores) -> float:
    column = operation.adaptive_coefficient
    return operation.kl_coefficient if column is None else float(row[column])


def token_rewards(batch: PlainBatch, operation: TokenRewards) -> None:
    for row in batch.rows:
        rewards = dict.fromkeys(row.own, 0.0)
        if operation.kl_coefficient:
            kl = kl_of(row, operation)
            batch.note(f"{column_role(operation.scores)}/kl", list(kl.values()))
            rewards = {token: -kl_weight(row, operation) * kl[token] for token in row.own}
        if row.own:
            rewards[row.own[-1]] += row[operation.scores]
        row.put_tokens(operation.rewards, rewards)


def add_turn_rewards(batch: PlainBatch, operation: AddTurnRewards) -> None:
    for row in batch.rows:
        rewards, further = row[operation.rewards], row[operation.turn_rewards]
        sums = {token: rewards[token] + operation.weight * further[token] for token in row.own}
        row.put_tokens(operation.rewards, sums)


def turns_of(row: PlainRow) -> list[list[int]]:
    """Runs of tokens that count."""
    turns: list[list[int]] = []
    for token in row.own:
        if token - 1 not in row.own:
            turns.append([])
        turns[-1].append(token)
    return turns


def add_turn_advantages(batch: PlainBatch, operation: AddTurnAdvantages) -> None:
    for group in batch.groups():
        returns = {
            row.number: discounted(
                [
                    operation.weight * sum(row[operation.turn_rewards][token] for token in turn)
                    for turn in turns_of(row)
                ],
                operation.discount,
            )
            for row in group
        }
        for row in group:
            total = {}
            for number, turn in enumerate(turns_of(row)):
                valid = [other for other in group if other[operation.valid]]
                values = [
                    returns[other.number][number]
                    for other in valid
                    if len(returns[other.number]) > number
                ]
                advantage = 0.0
                if row in valid and len(set(values)) > 1:
                    advantage = returns[row.number][number] - mean(values)
                    if operation.normalize_by_std:
                        advantage /= sqrt(variance(values)) + 1e-6
                total |= {token: row[operation.advantages][token] + advantage for token in turn}
            row.put_tokens(operation.advantages, total)


def gae(batch: PlainBatch, operation: Gae) -> None:
    values, returns = [], []
    for row in batch.rows:
        own = [row[operation.values][token] for token in row.own]
        rewards = [row[operation.rewards][token] for token in row.own]
        following = [*own, 0.0][1:]
        deltas = [
            reward + operation.gamma * later - value
            for reward, later, value in zip(rewards, following, own, strict=True)
        ]
        advantages = discounted(deltas, operation.gamma * operation.lam)
        targets = [one + other for one, other in zip(advantages, own, strict=True)]
        row.put_tokens(operation.advantages, dict(zip(row.own, advantages, strict=True)))
        row.put_tokens(operation.returns, dict(zip(row.own, targets, strict=True)))
        values += own
        returns += targets
    critic, total = column_role(operation.values), variance(returns)
    batch.note(f"{critic}/value_mean", values)
    errors = [one - other for one, other in zip(returns, values, strict=True)]
    batch.note(f"{critic}/explained_variance", [1 - variance(errors) / total if total else 0.0])


def rewards_to_go(batch: PlainBatch, operation: RewardsToGo) -> None:
    for row in batch.rows:
        sums = discounted([row[operation.rewards][token] for token in row.own], operation.gamma)
        row.put_tokens(operation.advantages, dict(zip(row.own, sums, strict=True)))


def whiten(batch: PlainBatch, operation: Whiten) -> None:
    name = operation.advantages
    valid = [row for row in batch.rows if row[operation.valid]]
    kept = [row[name][token] for row in valid for token in row.own]
    for row in batch.rows:
        scaled = {
            token: (row[name][token] - mean(kept)) / sqrt(variance(kept) + 1e-8)
            for token in row.own
            if row[operation.valid]
        }
        row.put_tokens(name, scaled)


def group_advantages(batch: PlainBatch, operation: GroupAdvantages) -> None:
    for group in batch.groups():
        valid = [row for row in group if row[operation.valid]]
        scores = [row[operation.scores] for row in valid]
        for row in group:
            advantage = 0.0
            if row in valid and len(set(scores)) > 1:
                advantage = row[operation.scores] - baseline_of(row, valid, operation)
                if operation.normalize_by_std:
                    advantage /= deviation_of(valid, operation) + 1e-6
            row.put_tokens(operation.advantages, dict.fromkeys(row.own, advantage))
        batch.note("groups/equal", [float(len(set(scores)) < 2)])


def baseline_of(row: PlainRow, valid: Sequence[PlainRow], operation: GroupAdvantages) -> float:
    match operation.baseline:
        case GroupBaseline.MEAN:
            return mean([other[operation.scores] for other in valid])
        case GroupBaseline.LEAVE_ONE_OUT:
            return mean([other[operation.scores] for other in valid if other is not row])
        case GroupBaseline.LENGTH_WEIGHTED:
            total = sum(len(other.own) for other in valid)
            weighted = sum(len(other.own) * other[operation.scores] for other in valid)
            return weighted / total if total else 0.0


def deviation_of(valid: Sequence[PlainRow], operation: GroupAdvantages) -> float:
    """How far valid rows are from their baselines."""
    centred = [row[operation.scores] - baseline_of(row, valid, operation) for row in valid]
    return sqrt(sum(x * x for x in centred) / (len(valid) - 1))


def above_baseline(batch: PlainBatch, operation: AboveBaseline) -> None:
    for row in batch.rows:
        baseline, name = row[operation.baseline], operation.advantages
        above = {token: row[name][token] - baseline for token in row.own}
        row.put_tokens(name, above if row[operation.has_baseline] else {})


def penalized_scores(batch: PlainBatch, operation: PenalizedScores) -> None:
    for row in batch.rows:
        kl = list(kl_of(row, operation).values())
        batch.note(f"{column_role(operation.scores)}/kl", kl)
        penalty = kl_weight(row, operation) * sum(kl)
        row.values[operation.penalized] = row[operation.scores] - penalty


def overlong_penalty(batch: PlainBatch, operation: OverlongPenalty) -> None:
    for row in batch.rows:
        over = (row.num_tokens - (operation.longest - operation.margin)) / operation.margin
        lost = operation.penalty * min(1.0, max(0.0, over))
        batch.note(f"{column_role(operation.scores)}/overlong_penalty", [lost])
        row.values[operation.shaped] = row[operation.scores] - lost


def mixed_groups(batch: PlainBatch, operation: MixedGroups) -> None:
    for group in batch.groups():
        scores = {row[operation.scores] for row in group if row[operation.valid]}
        for row in group:
            row.values[operation.mixed] = bool(row[operation.valid]) and len(scores) > 1


def enough_groups(batch: PlainBatch, operation: EnoughGroups) -> None:
    counted = {row.group for row in batch.rows if row[operation.counted]}
    for row in batch.rows:
        row.values[operation.enough] = len(counted) >= operation.num_groups


def both_valid(batch: PlainBatch, operation: BothValid) -> None:
    for row in batch.rows:
        row.values[operation.both] = bool(row[operation.first]) and bool(row[operation.second])


def pass_at_k(batch: PlainBatch, operation: PassAtK) -> None:
    role = column_role(operation.scores)
    for row in batch.rows:
        passes = row[operation.scores] >= operation.threshold
        row.values[operation.passed] = bool(row[operation.valid]) and passes
    groups = {role: batch.groups()}
    for source in ("even", "odd"):
        groups[f"{role}/{source}"] = [
            group for group in batch.groups() if source in bytes(group[0]["record"]).decode()
        ]
    for name, own in groups.items():
        for k in operation.ks:
            batch.note(f"{name}/pass_at_{k}", list(_shares_that_pass(own, operation, k)))


def _shares_that_pass(
    groups: Sequence[list[PlainRow]], operation: PassAtK, k: int
) -> Iterator[float]:
    """Of the subsets of k valid responses to a prompt those in which one passes."""
    for group in groups:
        passed = [row[operation.passed] for row in group if row[operation.valid]]
        subsets = list(combinations(passed, k))
        if subsets:
            yield mean([float(any(subset)) for subset in subsets])


def best_against_worst(batch: PlainBatch, operation: BestAgainstWorst) -> None:
    for group in batch.groups():
        for row in group:
            row.values[operation.preference] = 0
        valid = [row for row in group if row[operation.valid]]
        scores = [row[operation.scores] for row in valid]
        has_pair = len(set(scores)) > 1
        batch.note("groups/equal", [float(not has_pair)])
        if has_pair:
            valid[scores.index(max(scores))].values[operation.preference] = 1
            valid[scores.index(min(scores))].values[operation.preference] = -1


def pair_lines(batch: PlainBatch, operation: PairLines) -> None:
    for row in batch.rows:
        lines = [
            _line(row, other, operation)
            for other in batch.rows
            if other.group == row.group
            if (row[operation.preference], other[operation.preference]) == (1, -1)
        ]
        row.values[operation.lines] = list("\n".join(lines).encode())


def _line(chosen: PlainRow, rejected: PlainRow, operation: PairLines) -> str:
    record = json.loads(bytes(chosen["record"]))["record"]
    pair = {
        "prompt": record[operation.prompt_field],
        "chosen": bytes(chosen["response_text"]).decode(),
        "rejected": bytes(rejected["response_text"]).decode(),
        "chosen_score": chosen[operation.scores],
        "rejected_score": rejected[operation.scores],
        "step": STEP,
    }
    return json.dumps({**record, **pair})


def lagrange_multiplier(batch: PlainBatch, operation: LagrangeMultiplier) -> None:
    costs = [row[operation.costs] for row in batch.rows if row[operation.valid]]
    multiplier = operation.initial
    if costs:
        excess = mean(costs) - operation.limit
        multiplier *= exp(operation.learning_rate * multiplier * excess)
    multiplier = min(multiplier, operation.maximum)
    batch.note(f"{column_role(operation.costs)}/multiplier", [multiplier])
    for row in batch.rows:
        row.values[operation.multiplier] = multiplier


def penalized_advantages(batch: PlainBatch, operation: PenalizedAdvantages) -> None:
    for row in batch.rows:
        m, name = row[operation.multiplier], operation.advantages
        penalized = {
            token: (row[name][token] - m * row[operation.costs][token]) / (1 + m)
            for token in row.own
        }
        row.put_tokens(name, penalized)


def weighted_sum(batch: PlainBatch, operation: WeightedSum) -> None:
    role = column_role(operation.scores)
    for row in batch.rows:
        counts = operation.counted is None or bool(row[operation.counted])
        total = sum(weight * row[name] for name, weight in operation.terms.items())
        row.values[operation.scores] = total if counts else 0.0
        row.values[operation.valid] = counts
        if counts:
            batch.note(f"{role}/mean", [total])
            batch.spread.setdefault(f"{role}/std", []).append(total)


PLAIN_FORMS: dict[type, Callable[[PlainBatch, Any], None]] = {
    TokenRewards: token_rewards,
    AddTurnRewards: add_turn_rewards,
    AddTurnAdvantages: add_turn_advantages,
    Gae: gae,
    Whiten: whiten,
    GroupAdvantages: group_advantages,
    RewardsToGo: rewards_to_go,
    AboveBaseline: above_baseline,
    AdaptiveKlCoefficient: adaptive_kl_coefficient,
    PenalizedScores: penalized_scores,
    OverlongPenalty: overlong_penalty,
    MixedGroups: mixed_groups,
    EnoughGroups: enough_groups,
    BothValid: both_valid,
    PassAtK: pass_at_k,
    BestAgainstWorst: best_against_worst,
    PairLines: pair_lines,
    LagrangeMultiplier: lagrange_multiplier,
    PenalizedAdvantages: penalized_advantages,
    WeightedSum: weighted_sum,
}
"""By the operation's class; the user's own functions have no other form."""
