"""What Hugging Face answers to prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from rlhf_runtime.dataplane.columns import Column

from .tiny_models import END


def greedy_answers(
    model: PreTrainedModel,
    prompts: Column,
    stops: Sequence[int],
    max_tokens: int,
    excluded: Sequence[int] = (),
) -> list[list[int]]:
    """Greedily, one prompt at a time, without excluded tokens."""
    found = []
    for prompt in prompts.runs():
        ids = torch.tensor(prompt.astype(np.int64))[None]
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=list(stops),
            pad_token_id=END,
            suppress_tokens=list(excluded) or None,
        )
        found.append(answer[0, len(prompt) :].tolist())
    return found
