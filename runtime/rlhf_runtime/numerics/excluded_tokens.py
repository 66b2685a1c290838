"""Tokens of probability 0: padding of the vocabulary, and what top-p, top-k or min-p left out."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from rlhf_runtime.numerics.kept_bits import KeptBits

# Replaces the logits of excluded tokens. Not -inf, because a block may have no other tokens, and
# -inf - -inf would be NaN. Its probability is exactly 0 beside any other logit.
EXCLUDED_LOGIT = -1e30


def exclude_tokens_(
    scaled: Float[Tensor, "n some"],
    first: int,
    excluded: Sequence[range],
    kept: KeptBits | None = None,
) -> None:
    """Overwrite x = logits / T of excluded tokens, so that their probability is 0.

    Args:
        scaled: x of a part of the vocabulary.
        first: first token of the part.
        excluded: tokens of the whole vocabulary.
        kept: for each row the tokens that are not excluded. None: all.
    """
    if kept is not None:
        scaled.masked_fill_(kept.left_out(range(first, first + scaled.shape[1])), EXCLUDED_LOGIT)
    part = range(first, first + scaled.shape[1])
    for tokens in excluded:
        start, stop = max(tokens.start, part.start), min(tokens.stop, part.stop)
        if start < stop:
            scaled[:, start - first : stop - first] = EXCLUDED_LOGIT
