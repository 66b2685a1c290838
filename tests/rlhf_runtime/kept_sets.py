"""Random sets of kept tokens, encoded and as a dense mask; and the naive softmax over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_runtime.dataplane.columns import Column, pack
from rlhf_runtime.engines.kept_tokens import KeptTokens, SequenceSets


def random_mask(
    tokens: Tensor, vocabulary: int, seed: int = 0, without: Sequence[int] = ()
) -> Tensor:
    """bool[n, vocabulary]: sets of one token up to nearly all, with the tokens in them."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.rand(len(tokens), 1, generator=draw)
    mask = torch.rand(len(tokens), vocabulary, generator=draw) < share
    mask[::5] = False  # the token alone
    mask[:, list(without)] = False
    return mask.scatter_(1, tokens[:, None], True)


def encode(mask: Tensor, tokens: Tensor, lengths: NDArray[np.int32]) -> Column:
    """The column of kept tokens of packed responses."""
    rows, at = [], 0
    for length in lengths.tolist():
        sets = SequenceSets(mask.shape[1])
        for position in range(at, at + length):
            sets.add(mask[position].nonzero()[:, 0].numpy(), int(tokens[position]))
        rows.append(sets.encode())
        at += length
    return pack(rows, np.int32)


def kept_tokens(mask: Tensor, tokens: Tensor) -> KeptTokens:
    """The sets of one response."""
    lengths = np.array([len(tokens)], dtype=np.int32)
    return KeptTokens.from_column(encode(mask, tokens, lengths), lengths)


def masked_softmax(logits: Tensor, mask: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens and entropies, by torch's softmax with logits of -inf."""
    log_probs = logits.masked_fill(~mask, -torch.inf).log_softmax(dim=1)
    # A probability of 0 times -inf would be NaN.
    terms = torch.where(mask, log_probs, 0.0) * log_probs.exp()
    return log_probs.gather(1, tokens[:, None])[:, 0], -terms.sum(dim=1)
