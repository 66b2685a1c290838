"""The peer of bench-peers and bench-real: the same job under TRL's GRPOTrainer.

It runs in TRL's own environment. The settings make TRL as fast as is fair: float32 (fast on CPUs),
all cores, no gradient checkpointing, no reference model, no dropout, no logging, no saving, one
optimizer step per batch.

The last line on stdout is JSON: seconds of steps, mean score of greedy answers to held-out prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer
from trl_tasks import TASKS

from rlhf_runtime.data.sampler import rows_for_step


class Stopwatch(TrainerCallback):
    """Records ends of optimizer steps."""

    # A step lasts from one end to the next, so that generation counts.

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Record the start of the first step."""
        self.ends.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the end of a step."""
        self.ends.append(time.perf_counter())


def settings_of(options: argparse.Namespace, folder: Path) -> GRPOConfig:
    """Settings of the trainer."""
    rows = options.prompts * options.samples
    return GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        num_generations=options.samples,
        max_completion_length=options.max_new_tokens,
        temperature=1.0,
        beta=0.0,  # no reference model
        epsilon=0.2,
        loss_type="dapo",
        scale_rewards="group",
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        optim="adamw_torch_fused",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        max_steps=options.steps,
        shuffle_dataset=False,
        disable_dropout=True,
        # Generation is transformers': TRL 1.16 supports vLLM up to 0.31, and on CPUs vLLM packs its
        # weights, which TRL's updates would not reach.
        use_transformers_continuous_batching=options.continuous_batching,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=options.seed,
    )


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the model to start from")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--continuous-batching", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    watch = Stopwatch()
    task = TASKS[options.task](options.folder, options.seed)
    rows = [task.rows[number] for number in training_order(options, len(task.rows))]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(options.folder),
        reward_funcs=task.rewards,
        args=settings_of(options, options.scratch),
        train_dataset=Dataset.from_list(rows),
        callbacks=[watch],
    )
    trainer.train()
    seconds = [end - begin for begin, end in zip(watch.ends, watch.ends[1:], strict=False)]
    score = task.evaluate(trainer.model.eval(), options.max_new_tokens)
    print(json.dumps({"seconds": seconds, "score": score}), flush=True)


def training_order(options: argparse.Namespace, num_rows: int) -> list[int]:
    """Numbers of the rows of all steps, in the order of our run."""
    return [
        number
        for step in range(options.steps)
        for number in rows_for_step(step, num_rows, options.prompts, True, options.seed)
    ]


if __name__ == "__main__":
    main()
