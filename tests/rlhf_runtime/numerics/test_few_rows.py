"""Every function of the numerics on parts of a batch that have few rows, few tokens, or none.

A batch is cut into its prompts, with an empty part before them. Put together, what a function gives
for the parts is what it gives for the whole batch.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from rlhf_api.spec.policy_loss import KlEstimator, LossAggregation
from rlhf_flow.step.operations import GroupBaseline
from rlhf_runtime import numerics
from rlhf_runtime.numerics import (
    advantages,
    entropy,
    group_advantages,
    head,
    losses,
    moments,
    padding,
    preferences,
    rewards,
    turn_advantages,
)
from rlhf_runtime.numerics.moments import Reduce

from ..thread_ranks import ThreadRanks

VOCABULARY = 5
GROUPS = torch.tensor([0, 1, 2, 2, 3, 3, 3, 4, 4, 5])
LENGTHS = torch.tensor([0, 1, 3, 2, 4, 0, 2, 1, 1, 3])
VALID = torch.tensor([1, 1, 1, 1, 1, 0, 1, 0, 0, 0]).bool()
PREFERENCE = torch.tensor([0, 1, 1, -1, -1, 1, 1, 0, -1, -1])
SCORES = torch.tensor([1.0, 0.5, 0.25, 0.25, 2.0, 9.0, -1.0, 9.0, 9.0, 9.0])
MASKED_GROUP = 2
"""Of which no token counts."""


class Part(NamedTuple):
    """Some rows. Tokens are packed; padded, they are as wide as the longest of these rows."""

    groups: Tensor
    lengths: Tensor
    valid: Tensor
    preference: Tensor
    scores: Tensor
    x: Tensor
    """float[tokens]."""
    y: Tensor
    kept: Tensor
    """bool[tokens]: which ones count."""
    tokens: Tensor
    """int64[tokens]: of the vocabulary."""
    reduce: Reduce

    def padded(self, packed: Tensor) -> Tensor:
        return padding.pad(packed, self.lengths)[0]

    @property
    def mask(self) -> Tensor:
        return self.padded(self.kept)

    def packed(self, padded: Tensor) -> Tensor:
        return padding.unpad(padded, padding.length_mask(self.lengths))


def part_of(rows: slice, reduce: Reduce) -> Part:
    """Rows of the batch; tokens that do not count have NaN."""
    ends = LENGTHS.cumsum(0)
    row_of = torch.repeat_interleave(torch.arange(len(LENGTHS)), LENGTHS)
    own = (row_of >= rows.start) & (row_of < rows.stop)
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(int(ends[-1]), generator=draw) for _ in range(2))
    kept = (GROUPS[row_of] != MASKED_GROUP) & (torch.rand(len(x), generator=draw) < 0.8)
    tokens = torch.randint(VOCABULARY, (len(x),), generator=draw)
    return Part(
        *(column[rows] for column in (GROUPS, LENGTHS, VALID, PREFERENCE, SCORES)),
        *(torch.where(kept, values, torch.nan)[own] for values in (x, y)),
        *(kept[own], tokens[own], reduce),
    )


WHOLE = slice(0, len(GROUPS))
BOUNDS = [0, *torch.searchsorted(GROUPS, torch.arange(int(GROUPS[-1]) + 2)).tolist()]
BY_GROUP = [slice(*bounds) for bounds in pairwise(BOUNDS)]
"""No rows, then those of one prompt after the other."""

Together = Callable[[Sequence[Tensor]], Tensor]


def joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts))


def added(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(dim=0)


def same(parts: Sequence[Tensor]) -> Tensor:
    """All ranks come to the same."""
    for part in parts:
        torch.testing.assert_close(part, parts[0], rtol=0, atol=0, equal_nan=True)
    return parts[0]


def advantages_of(part: Part, baseline: GroupBaseline) -> Tensor:
    counts = part.mask.sum(dim=1)
    return group_advantages.group_advantages(
        part.scores, part.groups, part.valid, True, baseline, counts
    ).advantages


def aggregated(part: Part, mode: LossAggregation) -> Tensor:
    counts = losses.Denominators(9, 5, 4)
    return losses.aggregate(part.padded(part.x), part.mask, mode, counts)


def logits_of(part: Part) -> Tensor:
    """Of a small vocabulary, from the tokens that count."""
    own = part.x[part.kept]
    return own[:, None] * torch.arange(1.0, VOCABULARY + 1)


def with_gradients(outputs: tuple[Tensor, Tensor | None], given: Tensor) -> Tensor:
    """Log-probabilities, entropies, and the gradient of their sum in what they come from."""
    log_probs, entropies = outputs
    assert entropies is not None
    (gradient,) = torch.autograd.grad((log_probs + entropies).sum(), given)
    return torch.cat([torch.stack([log_probs, entropies], dim=1).detach(), gradient], dim=1)


def token_outputs(part: Part) -> Tensor:
    logits = logits_of(part).requires_grad_()
    outputs = entropy.token_log_probs(logits, part.tokens[part.kept], 0.7, True)
    return with_gradients(outputs, logits)


def head_outputs(part: Part) -> Tensor:
    hidden = part.x[part.kept][:, None].requires_grad_()
    weight = torch.arange(1.0, VOCABULARY + 1)[:, None]
    outputs = head.head_log_probs(hidden, weight, part.tokens[part.kept], 0.7, True)
    return with_gradients(outputs, hidden)


def stacked(columns: Sequence[Tensor]) -> Tensor:
    return torch.stack([column.double() for column in columns], dim=1)


def per_token(part: Part, function: Callable[..., Sequence[Tensor]], *settings: float) -> Tensor:
    """Results of a function of single tokens, for the tokens that count."""
    x, y = part.x[part.kept], part.y[part.kept]
    return stacked(function(x, y, *settings))


PIECES: dict[str, tuple[Together, Callable[[Part], Tensor]]] = {
    "aggregate": (
        added,
        lambda p: torch.stack([aggregated(p, mode) for mode in LossAggregation]),
    ),
    "learned_multiplier": (
        same,
        lambda p: advantages.learned_multiplier(
            torch.tensor(0.5, dtype=torch.float64), p.scores, p.valid, 0.1, 0.2, 9.0, p.reduce
        ),
    ),
    "penalized_advantages": (
        joined,
        lambda p: p.packed(
            advantages.penalized_advantages(p.padded(p.x), p.padded(p.y), p.scores[:, None])
        ),
    ),
    "token_log_probs": (joined, token_outputs),
    "head_log_probs": (joined, head_outputs),
    "generalized_advantages": (
        joined,
        lambda p: p.packed(
            torch.stack(
                advantages.generalized_advantages(p.padded(p.x), p.padded(p.y), p.mask, 0.9, 0.8),
                dim=2,
            )
        ),
    ),
    "rewards_to_go": (
        joined,
        lambda p: p.packed(advantages.rewards_to_go(p.padded(p.x), p.mask, 0.9)),
    ),
    "pass_at_k": (
        joined,
        lambda p: group_advantages.pass_at_k(p.scores > 0.4, p.groups, p.valid, 1),
    ),
    "group_advantages": (
        joined,
        lambda p: stacked([advantages_of(p, baseline) for baseline in GroupBaseline]),
    ),
    "turn_advantages": (
        joined,
        lambda p: turn_advantages.turn_advantages(
            p.scores[:, None].repeat(1, 2),
            torch.ones(len(p.scores), 2, dtype=torch.bool),
            *(p.groups, p.valid),
            discount=0.5,
            normalize_by_std=True,
        ),
    ),
    "mixed_groups": (joined, lambda p: group_advantages.mixed_groups(p.scores, p.groups, p.valid)),
    "group_extremes": (
        joined,
        lambda p: group_advantages.group_extremes(
            p.scores.double(),
            torch.unique(p.groups, return_inverse=True)[1],
            p.valid,
            len(torch.unique(p.groups)),
            "amax",
        ),
    ),
    "kl_estimate": (
        joined,
        lambda p: per_token(p, lambda x, y: [losses.kl_estimate(x, y, k) for k in KlEstimator]),
    ),
    "corrected_kl": (joined, lambda p: per_token(p, lambda x, y: [losses.corrected_kl(x, y)])),
    "moments": (
        same,
        lambda p: torch.stack(moments.moments(p.padded(p.x), p.mask, p.reduce)),
    ),
    "masked_var": (same, lambda p: moments.masked_var(p.padded(p.x), p.mask, p.reduce)),
    "whiten": (
        joined,
        lambda p: p.packed(moments.whiten(p.padded(p.x), p.mask, p.reduce)),
    ),
    "explained_variance": (
        same,
        lambda p: moments.explained_variance(p.padded(p.x), p.padded(p.y), p.mask, p.reduce),
    ),
    "length_mask": (joined, lambda p: padding.length_mask(p.lengths).sum(dim=1)),
    "pad": (joined, lambda p: p.packed(padding.pad(p.x, p.lengths)[0])),
    "unpad": (joined, lambda p: padding.unpad(p.padded(p.x), p.mask)),
    "log_ratios": (joined, lambda p: losses.log_ratios(p.x, p.y)),
    "sequence_log_ratios": (
        joined,
        lambda p: losses.sequence_log_ratios(p.x, p.lengths, p.kept),
    ),
    "clipped_policy_loss": (
        joined,
        lambda p: per_token(p, losses.clipped_policy_loss, 0.2, 0.3, 2.0),
    ),
    "cispo_loss": (
        joined,
        lambda p: per_token(p, lambda x, y: losses.cispo_loss(x, x - y, y, 0.2, 0.3)),
    ),
    "importance_weights": (
        joined,
        lambda p: per_token(p, lambda x, y: [losses.importance_weights(x, y, 2.0)]),
    ),
    "passes_mismatch_threshold": (
        joined,
        lambda p: losses.passes_mismatch_threshold(
            *(torch.where(p.kept, values, 0.0) for values in (p.x, p.y)), p.lengths, 1.5
        ),
    ),
    "best_against_worst": (
        joined,
        lambda p: preferences.best_against_worst(p.scores, p.groups, p.valid).preference,
    ),
    "list_pairs": (
        joined,
        lambda p: torch.stack(
            [p.scores[rows] for rows in preferences.list_pairs(p.groups, p.preference)], dim=1
        ),
    ),
    "count_pairs": (
        added,
        lambda p: torch.tensor(preferences.count_pairs(p.groups, p.preference)),
    ),
    "is_paired": (joined, lambda p: preferences.is_paired(p.groups, p.preference)),
    "bradley_terry_loss": (
        joined,
        lambda p: per_token(p, lambda x, y: [preferences.bradley_terry_loss(x - y, 0.1)]),
    ),
    "weighted_sum": (
        joined,
        lambda p: rewards.weighted_sum([p.scores, p.lengths.float()], [1.0, -0.5]),
    ),
    "token_rewards": (
        joined,
        lambda p: p.packed(
            torch.stack(
                [
                    rewards.token_rewards(p.scores, p.mask),
                    rewards.token_rewards(p.scores, p.mask, p.padded(p.x), 0.1),
                ],
                dim=2,
            )
        ),
    ),
    "adapted_kl_coefficient": (
        same,
        lambda p: rewards.adapted_kl_coefficient(
            torch.tensor(0.5, dtype=torch.float64), p.scores, 0.4, 10, p.reduce
        ),
    ),
    "penalized_scores": (
        joined,
        lambda p: rewards.penalized_scores(p.scores, p.mask, p.padded(p.x), 0.1),
    ),
    "overlong_penalties": (
        joined,
        lambda p: rewards.overlong_penalties(p.lengths, longest=4, margin=3, penalty=1.0),
    ),
    "clipped_value_loss": (
        joined,
        lambda p: per_token(p, lambda x, y: losses.clipped_value_loss(x, x * 0.9, y, 0.05)),
    ),
}
"""How parts are put together, and what is computed of each, by the function's name."""
PARTS_OF_OTHERS = {
    "exclude_tokens_",
    "no_reduce",
    "require_positive",
    "row_blocks",
    "softmax_gradients_",
    "turn_numbers",
}
"""Helpers that are tested through their callers."""


def public_functions() -> set[str]:
    names = set()
    for info in pkgutil.iter_modules(numerics.__path__, f"{numerics.__name__}."):
        module = import_module(info.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == info.name and not name.startswith("_"):
                names.add(name)
    return names


def test_every_function_is_in_the_table() -> None:
    assert PIECES.keys() | PARTS_OF_OTHERS == public_functions()


@pytest.mark.parametrize("name", PIECES)
def test_parts_give_what_the_whole_gives(name: str) -> None:
    together, function = PIECES[name]
    alone = ThreadRanks(1)
    (whole,) = alone.run(lambda rank: function(part_of(WHOLE, alone.reduce(rank))))
    ranks = ThreadRanks(len(BY_GROUP))
    parts = ranks.run(lambda rank: function(part_of(BY_GROUP[rank], ranks.reduce(rank))))
    torch.testing.assert_close(together(parts), whole, equal_nan=True)


@pytest.mark.parametrize("name", PIECES)
def test_without_rows_there_is_no_nan(name: str) -> None:
    nothing = ThreadRanks(1)
    (values,) = nothing.run(
        lambda rank: PIECES[name][1](part_of(slice(0, 0), nothing.reduce(rank)))
    )
    assert values.isfinite().all()
    assert PIECES[name][0] is not joined or not len(values)
