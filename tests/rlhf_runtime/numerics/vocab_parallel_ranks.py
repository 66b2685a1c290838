"""Scenarios of a vocabulary that ranks share, for test_vocab_parallel: run on three ranks.

Run as `python -m tests.rlhf_runtime.numerics.vocab_parallel_ranks RANK WORLD_SIZE FOLDER`. The
oracle is the same function of the whole logits.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rlhf_runtime.engines.world import World
from rlhf_runtime.numerics import entropy, vocab_parallel

from ..world_of_processes import Scenario, run_scenarios

PARTS = {
    "even": (range(0, 4), range(4, 8), range(8, 12)),
    "the last one short": (range(0, 5), range(5, 10), range(10, 11)),
    "one empty": (range(0, 6), range(6, 6), range(6, 12)),
}

GRADIENT_LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}


def sample(vocabulary: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are large and small, some of them -inf; tokens that can occur."""
    draw = torch.Generator().manual_seed(3)
    logits = 30 * torch.randn(50, vocabulary, dtype=torch.float64, generator=draw)
    tokens = torch.randint(vocabulary, (50,), generator=draw)
    logits[::3, 2] = -torch.inf
    logits[7, 4:] = -torch.inf  # most ranks have nothing that can occur
    tokens[7] = 1
    tokens[::3] = torch.where(tokens[::3] == 2, 3, tokens[::3])
    return logits.to(dtype), tokens


def results_are_those_of_whole_logits(
    world: World, folder: Path, parts: tuple[range, ...], dtype: torch.dtype, with_entropy: bool
) -> None:
    group = world.make_group(range(world.size))
    logits, tokens = sample(parts[-1].stop, dtype)
    own = parts[world.rank]
    mine = logits[:, own.start : own.stop].clone().requires_grad_()
    logits.requires_grad_()
    factors, found = torch.linspace(-1, 1, 50), []
    for elements in (20, 1 << 16):  # one row or two in a block, and all
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(entropy, "CPU_BLOCK_ELEMENTS", elements)
            expected = entropy.token_log_probs(logits, tokens, 0.7, with_entropy)
            got = vocab_parallel.token_log_probs(mine, tokens, own, group, 0.7, with_entropy)
            (given,) = torch.autograd.grad(loss(got, factors), mine)
            (wanted,) = torch.autograd.grad(loss(expected, factors), logits)
            found.append((got, expected, given, wanted[:, own.start : own.stop]))
    for got, expected, given, wanted in found:  # after all collectives: others do not wait
        assert (got[1] is None) == (not with_entropy)
        for one, other in zip(got, expected, strict=True):
            if one is not None and other is not None:
                assert one.dtype == other.dtype
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        limit = GRADIENT_LIMITS[dtype]
        torch.testing.assert_close(given, wanted, rtol=limit, atol=limit)


def loss(results: tuple[torch.Tensor, torch.Tensor | None], factors: torch.Tensor) -> torch.Tensor:
    log_probs, entropies = results
    total = (log_probs * factors).sum()
    return total if entropies is None else total + (entropies * factors.flip(0)).sum()


def ranks_beside_the_group_take_no_part(world: World, folder: Path) -> None:
    group = world.make_group([0, 2])
    logits, tokens = sample(8, torch.float32)
    if world.rank == 1:
        return
    own = range(0, 3) if world.rank == 0 else range(3, 8)
    part = logits[:, own.start : own.stop]
    got, nothing = vocab_parallel.token_log_probs(part, tokens, own, group)
    everywhere = [torch.empty_like(got) for _ in range(2)]
    dist.all_gather(everywhere, got, group=group)
    assert torch.equal(*everywhere) and nothing is None
    torch.testing.assert_close(got, entropy.token_log_probs(logits, tokens)[0])


def no_rows_and_no_temperature(world: World, folder: Path) -> None:
    group = world.make_group(range(world.size))
    own = PARTS["even"][world.rank]
    logits = torch.empty(0, 4, requires_grad=True)
    tokens = torch.empty(0, dtype=torch.long)
    log_probs, entropies = vocab_parallel.token_log_probs(logits, tokens, own, group, 1.0, True)
    assert entropies is not None and log_probs.shape == entropies.shape == (0,)
    (log_probs.sum() + entropies.sum()).backward()
    with pytest.raises(ValueError, match="temperature must be positive: got 0"):
        vocab_parallel.token_log_probs(logits, tokens, own, group, 0.0)


SCENARIOS: dict[str, Scenario] = {
    **{
        f"results are those of whole logits ({name}, {dtype}, entropy {with_entropy})": partial(
            results_are_those_of_whole_logits, parts=parts, dtype=dtype, with_entropy=with_entropy
        )
        for name, parts in PARTS.items()
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
        for with_entropy in (False, True)
    },
    "ranks beside the group take no part": ranks_beside_the_group_take_no_part,
    "no rows, and no temperature": no_rows_and_no_temperature,
}


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
