"""Makes the initial model of both sides of a benchmark: the builtin one after a warm start.

A program of its own: `warm_model.py FOLDER` writes config, weights and tokenizer in Hugging Face
format. It uses plain torch, so that it favours neither side.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Before the imports below: OpenMP reads it then. On a busy machine spinning threads take twice as
# long.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import torch  # noqa: E402
from task import END, IGNORED, encode  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedModel  # noqa: E402

from rlhf_runtime.data.sort_digits import training_rows  # noqa: E402
from rlhf_runtime.models.tiny_llama import write_tiny_llama  # noqa: E402

BATCH_ROWS = 128
LEARNING_RATE = 1e-3


def warm_start(folder: Path, seed: int, steps: int) -> float:
    """Write the warm-started model; returns its last loss."""
    write_tiny_llama(folder, seed)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    loss = train(model, answer_tokens(seed, steps * BATCH_ROWS), steps)
    model.save_pretrained(folder)
    return loss


def answer_tokens(seed: int, count: int) -> torch.Tensor:
    """Tokens of prompts and answers with the end token: int64[count, 14]."""
    # The last rows, because reinforcement learning begins with the first ones.
    rows = list(training_rows(seed))[-count:]
    return torch.tensor([[*encode(row["prompt"] + row["answer"]), END] for row in rows])


def train(model: PreTrainedModel, tokens: torch.Tensor, steps: int) -> float:
    """Train on the answers; returns the last loss."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    value = 0.0
    for batch in tokens.split(BATCH_ROWS)[:steps]:
        labels = batch.clone()
        labels[:, :7] = IGNORED  # six digits and the equals sign of the prompt
        loss = model(input_ids=batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = float(loss.detach())
    return value


def main() -> None:
    """Read the command line and write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=32, help="optimizer steps (default 32)")
    options = parser.parse_args()
    loss = warm_start(options.folder, options.seed, options.steps)
    print(f"warm start: {options.steps} steps, loss {loss:.3f}, written to {options.folder}")


if __name__ == "__main__":
    main()
