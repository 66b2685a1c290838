"""Log-probabilities of tokens, and the entropy of their distribution, from logits.

A language model's logits are the largest tensor of a training step. They are read in blocks of
rows: apart from logits and their gradient only one block exists, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf_runtime.numerics.excluded_tokens import exclude_tokens_
from rlhf_runtime.numerics.kept_bits import KeptBits

# Fits in a core's cache: measured fastest for vocabularies of 64 and of 128,000 tokens.
CPU_BLOCK_ELEMENTS = 1 << 16
# 128 MiB of float32: large enough to hide kernel launches.
GPU_BLOCK_ELEMENTS = 1 << 25
# Replaces log 0, because 0 * -inf would be NaN; its probability is 0 in float32, too.
LOWEST_LOG_PROB = -1e4


def token_log_probs(
    logits: Float[Tensor, "n vocabulary"],
    tokens: Int[Tensor, " n"],
    temperature: float = 1.0,
    with_entropy: bool = False,
    excluded: Sequence[range] = (),
    kept: KeptBits | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"] | None]:
    """Compute log-probabilities of tokens under softmax(logits / temperature), and its entropy.

    Differentiable once in the logits. Computed in float32 whatever the logits' dtype (float64 stays
    float64). Logits of -inf mark tokens that cannot occur.

    Args:
        logits: one row per predicted token, any float dtype.
        tokens: the token of each row, int64.
        temperature: the sampler's temperature, above 0.
        with_entropy: whether to compute the entropy.
        excluded: tokens of probability 0, none of them in `tokens`.
        kept: for each row the tokens that the softmax is over, `tokens` among them; all others have
            probability 0 and gradient 0. None: all tokens.

    Returns:
        Log-probabilities, and entropies in nats or None.

    Raises:
        ValueError: temperature is not positive.
    """
    require_positive(temperature)
    apply: Callable[..., tuple[Tensor, Tensor | None]] = (
        _TokenLogProbs.apply
    )  # torch leaves it untyped
    return apply(logits, tokens, temperature, with_entropy, excluded, kept)


def require_positive(temperature: float) -> None:
    """Refuse a temperature without a distribution.

    Raises:
        ValueError: temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature must be positive: got {temperature}; for greedy sampling use 1.0 here"
        )


def row_blocks(logits: Float[Tensor, "n vocabulary"]) -> Iterator[slice]:
    """Yield slices of rows that fit in a block."""
    elements = CPU_BLOCK_ELEMENTS if logits.device.type == "cpu" else GPU_BLOCK_ELEMENTS
    num_rows = max(1, elements // max(1, logits.shape[1]))
    return (slice(row, row + num_rows) for row in range(0, logits.shape[0], num_rows))


def softmax_gradients_(
    scaled: Float[Tensor, "n some"],
    log_sums: Float[Tensor, " n"],
    log_prob_grads: Float[Tensor, " n"],
    entropies: Float[Tensor, " n"] | None,
    entropy_grads: Float[Tensor, " n"] | None,
) -> None:
    """Overwrite x = logits / T, of some or all tokens of the vocabulary, by the gradient in x.

    The caller adds the term [i = k] of the chosen tokens k.

    With p the softmax of x and H its entropy: d log p_k / dx_i = [i = k] - p_i and
    dH / dx_i = -p_i (log p_i + H).

    Args:
        scaled: x.
        log_sums: the logarithm of the sum of exp x over the whole vocabulary.
        log_prob_grads: gradient of the chosen tokens' log-probabilities.
        entropies: H.
        entropy_grads: gradient of H; None if it is not part of the loss.
    """
    own = log_prob_grads[:, None]
    # In place throughout: a block's logits, softmax and gradient share one tensor.
    scaled.sub_(log_sums[:, None])
    if entropies is None or entropy_grads is None:
        scaled.exp_().mul_(-own)
        return
    probs = scaled.exp()
    scaled.clamp_(min=LOWEST_LOG_PROB).add_(entropies[:, None])
    scaled.mul_(-entropy_grads[:, None]).sub_(own).mul_(probs)


class _TokenLogProbs(torch.autograd.Function):
    """Saves the logits for the backward pass, which computes the softmax again."""

    # Saving the softmax instead would hold a second tensor of the logits' size.

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "n vocabulary"],
        tokens: Int[Tensor, " n"],
        temperature: float,
        with_entropy: bool,
        excluded: Sequence[range],
        kept: KeptBits | None,
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"] | None]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_sums = torch.empty(logits.shape[0], dtype=dtype, device=logits.device)
        entropies = torch.empty_like(log_sums) if with_entropy else None
        for rows in row_blocks(logits):
            block = logits[rows].to(dtype) / temperature
            exclude_tokens_(block, 0, excluded, None if kept is None else kept.rows(rows))
            log_sums[rows] = torch.logsumexp(block, dim=1)
            if entropies is not None:
                block.sub_(log_sums[rows, None]).clamp_(min=LOWEST_LOG_PROB)
                entropies[rows] = -block.exp().mul_(block).sum(dim=1)
        chosen = logits.gather(1, tokens[:, None])[:, 0].to(dtype) / temperature
        ctx.save_for_backward(logits, tokens, log_sums, entropies)
        ctx.temperature, ctx.excluded, ctx.kept = temperature, excluded, kept
        return chosen - log_sums, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, log_prob_grads: Tensor, entropy_grads: Tensor | None
    ) -> tuple[Tensor, None, None, None, None, None]:
        logits, tokens, log_sums, entropies = ctx.saved_tensors
        grads = torch.empty_like(logits)
        for rows in row_blocks(logits):
            block = logits[rows].to(log_sums.dtype) / ctx.temperature
            kept = None if ctx.kept is None else ctx.kept.rows(rows)
            exclude_tokens_(block, 0, ctx.excluded, kept)
            own = log_prob_grads[rows]
            entropy_terms = (
                None if tensor is None else tensor[rows] for tensor in (entropies, entropy_grads)
            )
            softmax_gradients_(block, log_sums[rows], own, *entropy_terms)
            # The chosen tokens' own term [i = k].
            block.scatter_add_(1, tokens[rows, None], own[:, None])
            grads[rows] = block.div_(ctx.temperature)
        return grads, None, None, None, None, None
