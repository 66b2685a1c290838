"""The builtin model: a Llama of 541,312 parameters with random weights and a character tokenizer.

Written without torch, so that any process can create it and equal seeds give equal files.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rlhf_runtime.data.character_tokenizer import (
    EOS_TOKEN,
    PAD_TOKEN,
    TOKENS,
    write_tokenizer,
)

HIDDEN_SIZE = 128
NUM_LAYERS = 2
NUM_HEADS = 4
HEAD_DIM = 32
INTERMEDIATE_SIZE = 512
MAX_POSITIONS = 2048
INITIALIZER_RANGE = 0.02
"""Standard deviation of the random weights, as transformers initialises Llama."""


def tiny_llama_folder(seed: int, workdir: Path) -> Path:
    """The model's folder below workdir; created if it does not exist.

    Safe to call from several processes at once: the first to finish wins, all get its folder.

    seed: schedule.seed; determines the weights.
    """
    folder = workdir / f"tiny-llama-seed-{seed}"
    if folder.is_dir():
        return folder
    workdir.mkdir(parents=True, exist_ok=True)
    # Written beside its final name and renamed, so that nobody reads an unfinished model.
    unfinished = Path(tempfile.mkdtemp(prefix=".tiny-llama-", dir=workdir))
    try:
        write_tiny_llama(unfinished, seed)
        unfinished.chmod(0o755)  # mkdtemp allows only its own user
        os.rename(unfinished, folder)
    except OSError:
        # Renaming onto a folder fails: another process was first, and its files are equal.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def write_tiny_llama(folder: Path, seed: int) -> None:
    """Write config, weights and tokenizer in Hugging Face format."""
    write_tokenizer(folder)
    end_and_pad = {"eos_token_id": TOKENS.index(EOS_TOKEN), "pad_token_id": TOKENS.index(PAD_TOKEN)}
    _write_json(folder / "config.json", {**_CONFIG, **end_and_pad})
    _write_json(folder / "generation_config.json", end_and_pad)
    save_file(_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})


def _weights(seed: int) -> dict[str, NDArray[np.float32]]:
    """Random matrices, drawn in a fixed order; norms of one."""
    # PCG64 gives the same stream on all machines.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, HIDDEN_SIZE])))
    weights = {}
    for name, shape in _shapes():
        if len(shape) == 1:
            weights[name] = np.ones(shape, dtype=np.float32)
        else:
            drawn = generator.standard_normal(shape, dtype=np.float32)
            weights[name] = drawn * np.float32(INITIALIZER_RANGE)
    return weights


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    attention = NUM_HEADS * HEAD_DIM
    yield "model.embed_tokens.weight", (len(TOKENS), HIDDEN_SIZE)
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (HIDDEN_SIZE,)
        for projection in ("q_proj", "k_proj", "v_proj"):
            yield f"{prefix}.self_attn.{projection}.weight", (attention, HIDDEN_SIZE)
        yield f"{prefix}.self_attn.o_proj.weight", (HIDDEN_SIZE, attention)
        yield f"{prefix}.post_attention_layernorm.weight", (HIDDEN_SIZE,)
        for projection in ("gate_proj", "up_proj"):
            yield f"{prefix}.mlp.{projection}.weight", (INTERMEDIATE_SIZE, HIDDEN_SIZE)
        yield f"{prefix}.mlp.down_proj.weight", (HIDDEN_SIZE, INTERMEDIATE_SIZE)
    yield "model.norm.weight", (HIDDEN_SIZE,)
    yield "lm_head.weight", (len(TOKENS), HIDDEN_SIZE)


_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": len(TOKENS),
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": INTERMEDIATE_SIZE,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": INITIALIZER_RANGE,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
}


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
