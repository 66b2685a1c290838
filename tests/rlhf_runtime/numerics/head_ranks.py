"""Scenarios of a head whose vocabulary ranks share, for test_head: run on three ranks.

Run as `python -m tests.rlhf_runtime.numerics.head_ranks RANK WORLD_SIZE FOLDER`. The oracle is the
same function of the whole head.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rlhf_api.spec.resources import Device
from rlhf_runtime.engines.world import World
from rlhf_runtime.numerics.head import VocabularyShard, head_log_probs
from rlhf_sizing import costs

from ..kept_sets import kept_tokens, masked_softmax, random_mask
from ..world_of_processes import Scenario, run_scenarios

PARTS = {
    "even": (range(0, 4), range(4, 8), range(8, 12)),
    "the last one short": (range(0, 5), range(5, 10), range(10, 11)),
    "one empty": (range(0, 6), range(6, 6), range(6, 12)),
}
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2}
Sample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def sample(vocabulary: int, dtype: torch.dtype, rows: int = 50) -> Sample:
    """Hidden states, a head's weight, tokens; logits are up to some 60 apart."""
    draw = torch.Generator().manual_seed(3)
    hidden = 8 * torch.randn(rows, 6, dtype=torch.float64, generator=draw)
    weight = torch.randn(vocabulary, 6, dtype=torch.float64, generator=draw)
    tokens = torch.randint(vocabulary, (rows,), generator=draw)
    return hidden.to(dtype), weight.to(dtype), tokens


def results_are_those_of_the_whole_head(
    world: World, folder: Path, parts: tuple[range, ...], dtype: torch.dtype, with_entropy: bool
) -> None:
    group, own = world.make_group(range(world.size)), parts[world.rank]
    hidden, weight, tokens = sample(parts[-1].stop, dtype)
    whole = hidden.requires_grad_(), weight.requires_grad_()
    mine = tuple(each.detach().clone().requires_grad_() for each in (hidden, rows(weight, own)))
    factors, found = torch.linspace(-1, 1, len(tokens)), []
    for width in (2, 1000):  # several blocks of a part, and one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(costs, "MIN_BLOCK_WIDTH", width)
            patch.setitem(costs.BLOCK_ELEMENTS, Device.CPU, 1)
            expected = head_log_probs(*whole, tokens, 0.7, with_entropy)
            part = VocabularyShard(own, group)
            got = head_log_probs(*mine, tokens, 0.7, with_entropy, part)
            given = torch.autograd.grad(loss(got, factors), mine)
            wanted = torch.autograd.grad(loss(expected, factors), whole)
        summed = given[0].double()  # each rank has its part of the gradient in the hidden states
        dist.all_reduce(summed, group=group)
        found.append((got, expected, (summed.to(dtype), given[1]), wanted))
    for got, expected, gradients, wanted in found:  # after all collectives: others do not wait
        for one, other in zip(got, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.dtype == other.dtype
                assert_close(one, other, dtype)
        assert_close(gradients[0], wanted[0], dtype)
        assert_close(gradients[1], rows(wanted[1], own), dtype)


def rows(weight: torch.Tensor, own: range) -> torch.Tensor:
    return weight[own.start : own.stop]


def assert_close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(got, expected, rtol=LIMITS[dtype], atol=LIMITS[dtype] * scale)


def loss(results: tuple[torch.Tensor, torch.Tensor | None], factors: torch.Tensor) -> torch.Tensor:
    log_probs, entropies = results
    total = (log_probs * factors).sum()
    return total if entropies is None else total + (entropies * factors.flip(0)).sum()


def ranks_beside_the_group_take_no_part(world: World, folder: Path) -> None:
    group = world.make_group([0, 2])
    hidden, weight, tokens = sample(8, torch.float32)
    if world.rank == 1:
        return
    own = range(0, 3) if world.rank == 0 else range(3, 8)
    part = VocabularyShard(own, group)
    got, nothing = head_log_probs(hidden, rows(weight, own), tokens, shard=part)
    everywhere = [torch.empty_like(got) for _ in range(2)]
    dist.all_gather(everywhere, got, group=group)
    assert torch.equal(*everywhere) and nothing is None
    assert_close(got, head_log_probs(hidden, weight, tokens)[0], torch.float32)


def excluded_tokens_take_no_part(world: World, folder: Path, with_entropy: bool) -> None:
    """Some of two ranks, and all of the third one."""
    excluded, possible = (range(3, 5), range(8, 12)), [0, 1, 2, 5, 6, 7]
    group, own = world.make_group(range(world.size)), PARTS["even"][world.rank]
    hidden, weight, positions = sample(12, torch.float64)
    positions = positions % len(possible)
    weight[[3, 4, *range(8, 12)]] *= 9
    mine = rows(weight, own).clone().requires_grad_()
    weight.requires_grad_()
    factors, found = torch.linspace(-1, 1, len(positions)), []
    expected = head_log_probs(hidden, weight[possible], positions, 0.7, with_entropy)
    (wanted,) = torch.autograd.grad(loss(expected, factors), weight)
    for width in (2, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(costs, "MIN_BLOCK_WIDTH", width)
            patch.setitem(costs.BLOCK_ELEMENTS, Device.CPU, 1)
            tokens, part = torch.tensor(possible)[positions], VocabularyShard(own, group)
            got = head_log_probs(hidden, mine, tokens, 0.7, with_entropy, part, excluded)
            found.append((got, *torch.autograd.grad(loss(got, factors), mine)))
    for got, gradient in found:  # after all collectives: others do not wait
        for one, other in zip(got, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert_close(one, other, torch.float64)
        assert_close(gradient, rows(wanted, own), torch.float64)
        assert not gradient[[token not in possible for token in own]].any()


def the_softmax_is_over_the_kept_tokens(
    world: World, folder: Path, parts: tuple[range, ...], dtype: torch.dtype
) -> None:
    """Each rank has the sets of its own part, which may begin within a byte."""
    group, own = world.make_group(range(world.size)), parts[world.rank]
    hidden, weight, tokens = sample(parts[-1].stop, dtype)
    mask = random_mask(tokens, parts[-1].stop)
    kept = kept_tokens(mask, tokens).bits(own, torch.device("cpu"))
    mine = rows(weight, own).clone().requires_grad_()
    weight.requires_grad_()
    factors, found = torch.linspace(-1, 1, len(tokens)), []
    expected = masked_softmax((hidden @ weight.T).double() / 0.7, mask, tokens)
    (wanted,) = torch.autograd.grad(loss(expected, factors), weight)
    for width in (2, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(costs, "MIN_BLOCK_WIDTH", width)
            patch.setitem(costs.BLOCK_ELEMENTS, Device.CPU, 1)
            part = VocabularyShard(own, group)
            got = head_log_probs(hidden, mine, tokens, 0.7, True, part, kept=kept)
            found.append((got, *torch.autograd.grad(loss(got, factors), mine)))
    for got, gradient in found:  # after all collectives: others do not wait
        for one, other in zip(got, expected, strict=True):
            assert one is not None
            assert_close(one.double(), other, dtype)
        assert_close(gradient, rows(wanted, own), dtype)


def where_nothing_is_predicted_ranks_exchange_nothing(world: World, folder: Path) -> None:
    own = PARTS["even"][world.rank]
    hidden, weight, tokens = sample(12, torch.float32, rows=0)
    part = VocabularyShard(own, world.make_group(range(world.size)))
    mine = rows(weight, own).clone().requires_grad_()
    log_probs, entropies = head_log_probs(hidden, mine, tokens, 1.0, True, part)
    assert entropies is not None and log_probs.shape == entropies.shape == (0,)
    torch.autograd.backward(log_probs.sum() + entropies.sum())
    assert mine.grad is not None and not mine.grad.any()


SCENARIOS: dict[str, Scenario] = {
    **{
        f"results are those of the whole head ({name}, {dtype}, entropy {with_entropy})": partial(
            results_are_those_of_the_whole_head, parts=parts, dtype=dtype, with_entropy=with_entropy
        )
        for name, parts in PARTS.items()
        for dtype in LIMITS
        for with_entropy in (False, True)
    },
    **{
        f"excluded tokens take no part (entropy {with_entropy})": partial(
            excluded_tokens_take_no_part, with_entropy=with_entropy
        )
        for with_entropy in (False, True)
    },
    **{
        f"the softmax is over the kept tokens ({name}, {dtype})": partial(
            the_softmax_is_over_the_kept_tokens, parts=parts, dtype=dtype
        )
        for name, parts in PARTS.items()
        for dtype in LIMITS
    },
    "ranks beside the group take no part": ranks_beside_the_group_take_no_part,
    "where nothing is predicted ranks exchange nothing": (
        where_nothing_is_predicted_ranks_exchange_nothing
    ),
}


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
