"""The model, prompts and lengths of bench-rank, for both of its processes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlhf_runtime.dataplane.columns import Column, pack

HEAD_SIZE = 64
HEADS_PER_KEY_HEAD = 4
FIRST_TOKEN = 10
"""Smaller ids are often special tokens."""


@dataclass(frozen=True)
class Load:
    """Sizes; lengths in tokens."""

    layers: int
    key_heads: int
    head_size: int
    vocabulary: int
    rows: int
    prompt: int
    response: int
    rounds: int
    dtype: str
    """`bfloat16` or `float32`."""

    @property
    def item_bytes(self) -> int:
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def cache_bytes(self) -> int:
        """Keys and values of all sequences, and of a block more for each."""
        # All sequences run at once, on both sides: no side waits for free blocks.
        tokens = self.rows * (self.prompt + self.response + 64)
        return 2 * self.layers * self.key_heads * self.head_size * self.item_bytes * tokens


def rank_load(load: Load) -> Column:
    """Packed random prompts, the same for all loads of these sizes."""
    draw = np.random.default_rng(0)
    numbers = draw.integers(FIRST_TOKEN, load.vocabulary, (load.rows, load.prompt))
    return pack(list(numbers.astype(np.int32)), np.int32)


def write_random_llama(folder: Path, hidden: int, layers: int, dtype: str, device: str) -> None:
    """Write a Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = hidden // HEAD_SIZE
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // HEADS_PER_KEY_HEAD),
        head_dim=HEAD_SIZE,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    # On the device: random numbers of a billion weights take a CPU minutes.
    with torch.device(device):
        LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)


def make_load(folder: Path, dtype: str, options: argparse.Namespace) -> Load:
    """Return the prompts and lengths of the command line for the model in a folder."""
    from transformers import AutoConfig

    # The cache has as many bytes on both sides, whatever the model.
    config = AutoConfig.from_pretrained(folder).get_text_config()
    # Only some models name it.
    head_size = getattr(config, "head_dim", None)
    return Load(
        layers=config.num_hidden_layers,
        key_heads=config.num_key_value_heads,
        head_size=head_size or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        rows=options.rows,
        prompt=options.prompt,
        response=options.response,
        rounds=options.rounds,
        dtype=dtype,
    )
