"""Log-probabilities and entropies from a language model head's input, without complete logits.

A micro-batch's logits are its largest tensor by far. Here they exist one block of the vocabulary at
a time: sums are carried from block to block, and the backward pass computes each block again. Only
a block that covers the complete vocabulary is saved. Ranks that share the vocabulary exchange a few
numbers per predicted token in the forward pass, and nothing in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from rlhf_api.spec.resources import Device
from rlhf_runtime.numerics.entropy import (
    LOWEST_LOG_PROB,
    require_positive,
    softmax_gradients_,
)
from rlhf_runtime.numerics.excluded_tokens import exclude_tokens_
from rlhf_runtime.numerics.kept_bits import KeptBits
from rlhf_sizing.costs import block_width


class VocabularyShard(NamedTuple):
    """A rank's part of the vocabulary."""

    own: range
    """The tokens whose rows of the head it has; may be empty. All shards cover the vocabulary."""
    group: dist.ProcessGroup
    """The ranks that share the vocabulary."""


def head_log_probs(
    hidden: Float[Tensor, "n hidden"],
    weight: Float[Tensor, "vocabulary hidden"],
    tokens: Int[Tensor, " n"],
    temperature: float = 1.0,
    with_entropy: bool = False,
    shard: VocabularyShard | None = None,
    excluded: Sequence[range] = (),
    kept: KeptBits | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"] | None]:
    """Compute log-probabilities of tokens under softmax(hidden weight^T / temperature), and its
    entropy.

    Differentiable once in `hidden` and `weight`. Products are in their dtype, everything after them
    in float32 (float64 stays float64). With a `shard` it is collective and results are equal on all
    ranks of the group; all ranks must compute the same loss, and the gradients in `hidden` of all
    ranks sum to the loss's gradient.

    Args:
        hidden: the head's input where a token is predicted; equal on ranks that share the
            vocabulary.
        weight: this rank's rows of the head's weight, which has no bias and no padding.
        tokens: the token of each row, int64.
        temperature: the sampler's temperature, above 0.
        with_entropy: whether to compute the entropy.
        shard: this rank's part of the vocabulary. None: all of it.
        excluded: tokens of probability 0, none of them in `tokens`. Their rows of the head get a
            gradient of exactly 0.
        kept: for each row the tokens that the softmax is over, of this rank's part of the
            vocabulary; all others have probability 0 and gradient 0. `tokens` are among them. None:
            all tokens.

    Returns:
        Log-probabilities, and entropies in nats or None.

    Raises:
        ValueError: temperature is not positive.

    Source: the online softmax of Milakov and Gimelshein (arXiv 1805.02867), over blocks.
    """
    require_positive(temperature)
    apply: Callable[..., tuple[Tensor, Tensor | None]] = (
        _HeadLogProbs.apply
    )  # torch leaves it untyped
    assert shard is None or len(shard.own) == len(weight), (shard, weight.shape)
    return apply(hidden, weight, tokens, temperature, with_entropy, shard, excluded, kept)


class _Sums(NamedTuple):
    """Running sums over the vocabulary of x = logits / T, each [n]."""

    maximum: Tensor
    """m = max x."""
    total: Tensor
    """Sum of exp(x - m)."""
    weighted: Tensor | None
    """Sum of exp(x - m) (x - m); None without entropy."""


class _HeadLogProbs(torch.autograd.Function):
    """Reads the vocabulary block by block, forward and backward."""

    # Each block's tensors are deleted before the next block is computed. The planner counts the
    # bytes of one block only: `BYTES_PER_LOGIT`.

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        tokens: Tensor,
        temperature: float,
        with_entropy: bool,
        shard: VocabularyShard | None,
        excluded: Sequence[range],
        kept_bits: KeptBits | None,
    ) -> tuple[Tensor, Tensor | None]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        first = 0 if shard is None else shard.own.start
        tokens = tokens - first if first else tokens
        chosen = torch.zeros(len(tokens), dtype=dtype, device=hidden.device)
        sums: _Sums | None = None
        kept: Tensor | None = None
        for columns in _blocks(weight, len(tokens)):
            logits = linear(hidden, weight[columns])
            scaled = logits.to(dtype, copy=True).div_(temperature)
            # The only block: kept, so that the backward pass does not compute it again.
            kept = logits if len(logits.T) == len(weight) else None
            del logits
            exclude_tokens_(scaled, first + columns.start, excluded, kept_bits)
            inside, positions = _positions_in(tokens, columns)
            chosen += scaled.gather(1, positions[:, None])[:, 0].masked_fill_(~inside, 0)
            sums = _add_block(sums, scaled, with_entropy)
            del scaled
        if sums is None:
            sums = _empty_sums(chosen, with_entropy)
        if shard is not None and len(tokens):
            sums, chosen = _reduce_sums(sums, chosen, shard.group)
        log_totals = sums.total.log()
        log_sums = sums.maximum + log_totals
        entropies = None if sums.weighted is None else log_totals - sums.weighted / sums.total
        ctx.save_for_backward(hidden, weight, tokens, log_sums, entropies, kept)
        ctx.temperature, ctx.first, ctx.excluded = temperature, first, excluded
        ctx.kept_bits = kept_bits
        ctx.set_materialize_grads(False)
        return chosen - log_sums, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, log_prob_grads: Tensor | None, entropy_grads: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None, None, None, None, None]:
        hidden, weight, tokens, log_sums, entropies, kept = ctx.saved_tensors
        own = torch.zeros_like(log_sums) if log_prob_grads is None else log_prob_grads
        # Accumulated in float32 over the blocks, and rounded once.
        hidden_grad = torch.zeros_like(hidden, dtype=log_sums.dtype)
        weight_grad = torch.empty_like(weight)
        # The same blocks as forward, so that each product is bit for bit the same.
        for columns in _blocks(weight, len(tokens)):
            part = weight[columns]
            logits = linear(hidden, part) if kept is None else kept
            block = logits.to(log_sums.dtype, copy=True).div_(ctx.temperature)
            del logits
            exclude_tokens_(block, ctx.first + columns.start, ctx.excluded, ctx.kept_bits)
            softmax_gradients_(block, log_sums, own, entropies, entropy_grads)
            inside, positions = _positions_in(tokens, columns)
            block.scatter_add_(1, positions[:, None], (own * inside)[:, None])
            grads = block.div_(ctx.temperature).to(hidden.dtype)
            del block
            hidden_grad += grads @ part
            torch.mm(grads.T, hidden, out=weight_grad[columns])
            del grads
        return hidden_grad.to(hidden.dtype), weight_grad, None, None, None, None, None, None


def _blocks(weight: Tensor, num_rows: int) -> Iterator[slice]:
    width = block_width(Device.CPU if weight.device.type == "cpu" else Device.GPU, num_rows)
    return (slice(at, min(at + width, len(weight))) for at in range(0, len(weight), width))


def _positions_in(tokens: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Mark tokens in a slice of the vocabulary, and return their positions in it, else 0."""
    inside = (tokens >= columns.start) & (tokens < columns.stop)
    return inside, torch.where(inside, tokens - columns.start, 0)


def _add_block(sums: _Sums | None, block: Tensor, with_entropy: bool) -> _Sums:
    """Add a block to the sums; overwrites the block."""
    maximum = block.amax(dim=1)
    if sums is not None:
        maximum = torch.maximum(maximum, sums.maximum)
    block.sub_(maximum[:, None])
    if with_entropy:
        block.clamp_(min=LOWEST_LOG_PROB)
    exponentials = block.exp()
    total = exponentials.sum(dim=1)
    weighted = exponentials.mul_(block).sum(dim=1) if with_entropy else None
    if sums is None:
        return _Sums(maximum, total, weighted)
    # Earlier sums are relative to the earlier maximum; move them to the new one.
    shift = sums.maximum - maximum
    scale = shift.exp()
    if weighted is not None:
        assert sums.weighted is not None
        weighted += scale * (sums.weighted + shift * sums.total)
    return _Sums(maximum, total + scale * sums.total, weighted)


def _empty_sums(chosen: Tensor, with_entropy: bool) -> _Sums:
    # The maximum of no numbers is -inf, and any other shard's replaces it.
    zero = torch.zeros_like(chosen)
    return _Sums(zero - torch.inf, zero, zero if with_entropy else None)


def _reduce_sums(sums: _Sums, chosen: Tensor, group: dist.ProcessGroup) -> tuple[_Sums, Tensor]:
    """Sum over all shards of the vocabulary; also returns the chosen tokens' x."""
    maximum = sums.maximum.clone()
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
    # An empty shard has maximum -inf, and -inf * 0 would be NaN.
    shift = (sums.maximum - maximum).clamp_(min=LOWEST_LOG_PROB)
    scale = shift.exp()
    # One shard has the chosen token's x; all others contribute 0.
    own = [chosen, scale * sums.total]
    if sums.weighted is not None:
        own.append(scale * (sums.weighted + shift * sums.total))
    totals = torch.stack(own)
    dist.all_reduce(totals, group=group)
    return _Sums(maximum, totals[1], totals[2] if len(totals) > 2 else None), totals[0]
