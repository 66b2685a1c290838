"""Log-probabilities and entropies of a language model's head, from its input: without its logits.

A micro-batch's logits are its largest tensor by far. Here they exist one block of the vocabulary at
a time: their sums are carried from block to block, and the backward pass computes each block again.
Only where one block is all of the vocabulary is it kept. Ranks that share the vocabulary exchange a
few numbers for each predicted token, once forward and not at all backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from rlhf_api.spec.resources import Device
from rlhf_decoder.costs import block_width
from rlhf_runtime.numerics.entropy import LOWEST_LOG_PROB, require_positive, softmax_gradients_


class VocabularyShard(NamedTuple):
    """A rank's share of the vocabulary."""

    own: range
    """The tokens of which it has rows of the head; may be empty, and all are the whole."""
    group: dist.ProcessGroup
    """The ranks that share the vocabulary."""


def head_log_probs(
    hidden: Float[Tensor, "n hidden"],
    weight: Float[Tensor, "vocabulary hidden"],
    tokens: Int[Tensor, " n"],
    temperature: float = 1.0,
    with_entropy: bool = False,
    part: VocabularyShard | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"] | None]:
    """Log-probabilities of tokens under softmax(hidden weight^T / temperature), and its entropy.

    Differentiable once in `hidden` and `weight`. Products are in their dtype, everything after them
    in float32 (float64 stays float64). With a `part` it is collective, results are equal on all
    ranks of the group, and the gradient in `hidden` is this rank's part of their sum, for losses
    that all ranks compute alike.

    Args:
        hidden: what the head gets where a token is predicted; the same on ranks that share the
            vocabulary.
        weight: of the head, without a bias and without padding; this rank's rows.
        tokens: the token of each row, int64.
        temperature: the sampler's temperature, above 0.
        with_entropy: whether the entropy is wanted.
        part: which rows they are. None: of the whole vocabulary.

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
    assert part is None or len(part.own) == len(weight), (part, weight.shape)
    return apply(hidden, weight, tokens, temperature, with_entropy, part)


class _Sums(NamedTuple):
    """Of x = logits / T over the vocabulary so far, each [n]: the maximum m of x, the sum of
    exp(x - m), and the sum of exp(x - m) (x - m) where the entropy is wanted."""

    maximum: Tensor
    total: Tensor
    weighted: Tensor | None


class _HeadLogProbs(torch.autograd.Function):
    """What is made of a block is gone before the next one is: `BYTES_PER_LOGIT`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        tokens: Tensor,
        temperature: float,
        with_entropy: bool,
        part: VocabularyShard | None,
    ) -> tuple[Tensor, Tensor | None]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        tokens = tokens if part is None else tokens - part.own.start
        chosen = torch.zeros(len(tokens), dtype=dtype, device=hidden.device)
        sums: _Sums | None = None
        kept: Tensor | None = None
        for columns in _blocks(weight, len(tokens)):
            logits = linear(hidden, weight[columns])
            scaled = logits.to(dtype, copy=True).div_(temperature)
            kept = logits if len(logits.T) == len(weight) else None
            del logits
            inside, places = _inside(tokens, columns)
            chosen += scaled.gather(1, places[:, None])[:, 0].masked_fill_(~inside, 0)
            sums = _added(sums, scaled, with_entropy)
            del scaled
        if sums is None:
            sums = _no_sums(chosen, with_entropy)
        if part is not None and len(tokens):
            sums, chosen = _joined(sums, chosen, part.group)
        log_totals = sums.total.log()
        log_sums = sums.maximum + log_totals
        entropies = None if sums.weighted is None else log_totals - sums.weighted / sums.total
        ctx.save_for_backward(hidden, weight, tokens, log_sums, entropies, kept)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return chosen - log_sums, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, log_prob_grads: Tensor | None, entropy_grads: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden, weight, tokens, log_sums, entropies, kept = ctx.saved_tensors
        own = torch.zeros_like(log_sums) if log_prob_grads is None else log_prob_grads
        hidden_grad = torch.zeros_like(hidden, dtype=log_sums.dtype)
        weight_grad = torch.empty_like(weight)
        for columns in _blocks(weight, len(tokens)):
            part = weight[columns]
            logits = linear(hidden, part) if kept is None else kept
            block = logits.to(log_sums.dtype, copy=True).div_(ctx.temperature)
            del logits
            softmax_gradients_(block, log_sums, own, entropies, entropy_grads)
            inside, places = _inside(tokens, columns)
            block.scatter_add_(1, places[:, None], (own * inside)[:, None])
            grads = block.div_(ctx.temperature).to(hidden.dtype)
            del block
            hidden_grad += grads @ part
            torch.mm(grads.T, hidden, out=weight_grad[columns])
            del grads
        return hidden_grad.to(hidden.dtype), weight_grad, None, None, None, None


def _blocks(weight: Tensor, num_rows: int) -> Iterator[slice]:
    """Slices of the vocabulary whose logits fit in a block."""
    width = block_width(Device.CPU if weight.device.type == "cpu" else Device.GPU, num_rows)
    return (slice(at, min(at + width, len(weight))) for at in range(0, len(weight), width))


def _inside(tokens: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Which tokens are in a slice of the vocabulary, and where; the others are at 0."""
    inside = (tokens >= columns.start) & (tokens < columns.stop)
    return inside, torch.where(inside, tokens - columns.start, 0)


def _added(sums: _Sums | None, block: Tensor, with_entropy: bool) -> _Sums:
    """The sums with those of one more block, which is overwritten."""
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
    shift = sums.maximum - maximum
    scale = shift.exp()
    if weighted is not None:
        assert sums.weighted is not None
        weighted += scale * (sums.weighted + shift * sums.total)
    return _Sums(maximum, total + scale * sums.total, weighted)


def _no_sums(chosen: Tensor, with_entropy: bool) -> _Sums:
    """Those of no token of the vocabulary."""
    nothing = torch.zeros_like(chosen)
    return _Sums(nothing - torch.inf, nothing, nothing if with_entropy else None)


def _joined(sums: _Sums, chosen: Tensor, group: dist.ProcessGroup) -> tuple[_Sums, Tensor]:
    """The sums over the whole vocabulary, and the chosen tokens' x, of ranks that have parts."""
    maximum = sums.maximum.clone()
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
    shift = (sums.maximum - maximum).clamp_(min=LOWEST_LOG_PROB)
    scale = shift.exp()
    parts = [chosen, scale * sums.total]
    if sums.weighted is not None:
        parts.append(scale * (sums.weighted + shift * sums.total))
    joined = torch.stack(parts)
    dist.all_reduce(joined, group=group)
    return _Sums(maximum, joined[1], joined[2] if len(joined) > 2 else None), joined[0]
