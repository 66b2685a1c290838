"""Log-probabilities and entropies where each tensor rank has the logits of a part of the
vocabulary: those of `entropy.token_log_probs` of whole logits, which are never put together.

Ranks exchange a few numbers per predicted token, once forward and not at all backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf_runtime.numerics.entropy import (
    LOWEST_LOG_PROB,
    require_positive,
    row_blocks,
    softmax_gradients_,
)


def token_log_probs(
    logits: Float[Tensor, "n own"],
    tokens: Int[Tensor, " n"],
    own: range,
    group: dist.ProcessGroup,
    temperature: float = 1.0,
    with_entropy: bool = False,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"] | None]:
    """Log-probabilities of tokens under softmax(logits / temperature), and its entropy; equal on
    all ranks of the group. Collective.

    Differentiable once in the logits, for losses that all ranks compute alike. Computed in float32
    whatever the logits' dtype (float64 stays float64). Logits of -inf are tokens that cannot occur.

    Args:
        logits: of this rank's part of the vocabulary, without padding; any float dtype.
        tokens: the token of each row, int64; the same on all ranks.
        own: this rank's part of the vocabulary; may be empty, and all are the whole.
        group: the ranks that share the vocabulary.
        temperature: the sampler's temperature, above 0.
        with_entropy: whether the entropy is wanted.

    Returns:
        Log-probabilities, and entropies in nats or None.

    Raises:
        ValueError: temperature is not positive.
    """
    require_positive(temperature)
    assert logits.shape[1] == len(own), (logits.shape, own)
    apply: Callable[..., tuple[Tensor, Tensor | None]] = (
        _TokenLogProbs.apply
    )  # torch leaves it untyped
    return apply(logits, tokens, own, group, temperature, with_entropy)


class _TokenLogProbs(torch.autograd.Function):
    """Keeps the logits themselves for the backward pass and computes the softmax there again.

    With d = x - max(x), x = logits / T: log p_k = d_k - log sum exp d, and the entropy is
    log sum exp d - (sum d exp d) / (sum exp d). Gradients as in `entropy`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "n own"],
        tokens: Int[Tensor, " n"],
        own: range,
        group: dist.ProcessGroup,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"] | None]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        places, held = _places(tokens, own)
        largest = _largest(logits, dtype) / temperature
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        sums = torch.zeros(3, logits.shape[0], dtype=dtype, device=logits.device)
        chosen, exps, products = sums
        for rows in row_blocks(logits) if len(own) else ():
            block = logits[rows].to(dtype) / temperature
            block.sub_(largest[rows, None])
            chosen[rows] = block.gather(1, places[rows, None])[:, 0].where(held[rows], 0)
            block.clamp_(min=LOWEST_LOG_PROB)
            exps[rows] = block.exp().sum(dim=1)
            if with_entropy:
                products[rows] = block.exp().mul_(block).sum(dim=1)
        dist.all_reduce(sums, group=group)
        log_exps = exps.log()
        entropies = log_exps - products / exps if with_entropy else None
        ctx.save_for_backward(logits, places, held, largest + log_exps, entropies)
        ctx.temperature = temperature
        return chosen - log_exps, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, log_prob_grads: Tensor, entropy_grads: Tensor | None
    ) -> tuple[Tensor, None, None, None, None, None]:
        logits, places, held, log_sums, entropies = ctx.saved_tensors
        grads = torch.empty_like(logits)
        for rows in row_blocks(logits) if logits.shape[1] else ():
            block = logits[rows].to(log_sums.dtype) / ctx.temperature
            own = log_prob_grads[rows]
            of_entropy = (
                None if each is None else each[rows] for each in (entropies, entropy_grads)
            )
            softmax_gradients_(block, log_sums[rows], own, *of_entropy)
            block.scatter_add_(1, places[rows, None], own.where(held[rows], 0)[:, None])
            grads[rows] = block.div_(ctx.temperature)
        return grads, None, None, None, None, None


def _places(tokens: Int[Tensor, " n"], own: range) -> tuple[Tensor, Tensor]:
    """Where tokens are among this rank's, and whether they are; those of others are at 0."""
    held = (tokens >= own.start) & (tokens < own.stop)
    return (tokens - own.start).where(held, 0), held


def _largest(logits: Float[Tensor, "n own"], dtype: torch.dtype) -> Float[Tensor, " n"]:
    if logits.shape[1] == 0:
        return logits.new_full((logits.shape[0],), -torch.inf, dtype=dtype)
    return logits.amax(dim=1).to(dtype)
