"""Print answers before and after a run: `show_answers.py RUN`.

Both models, the one that the run began with and the one that it saved, answer the first held-out
prompts of the run's manifest, greedily.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Before the imports below: OpenMP reads it then.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from rlhf_api.reading.manifest import load_jobs
from rlhf_api.spec.job import RLHFJob
from rlhf_runtime.data.load import PROMPTS_ONLY, load_table
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.telemetry.run_folder import RunFolder

ROWS = 10


def main() -> None:
    """Print a table of answers, and the held-out scores of the run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a run that has ended")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"prompts to show (default {ROWS})")
    options = parser.parse_args()
    run = RunFolder(options.run)
    (job,) = load_jobs(run.manifest.read_text(), str(run.manifest))
    before = Path(str(job.spec.models["actor"].source.path))
    tokenizer = TextTokenizer(before)
    prompts = held_out(job, tokenizer)
    rows = range(min(options.rows, len(prompts)))
    columns = [answers(model, job, prompts, tokenizer, rows) for model in (before, run.model)]
    table = Table("question", "answer", "before", "after", title="Held-out prompts")
    field = job.spec.data.train.prompt_field
    for row, *responses in zip(rows, *columns, strict=True):
        record = prompts.record(row)
        table.add_row(str(record[field]), str(record["answer"]), *responses)
    console = Console()
    console.print(table)
    scores = {
        record.step: record.metrics["evaluation/reward_mean"] for record in run.read().evaluations
    }
    console.print(
        f"Mean score of all {len(prompts)}: "
        + ", ".join(f"{score:.2f} after step {step}" for step, score in scores.items())
    )


def held_out(job: RLHFJob, tokenizer: TextTokenizer) -> PromptTable:
    """Read the rows that the run evaluates on."""
    source = job.spec.data.evaluation
    assert source is not None, "the run's manifest has no data.evaluation"
    setting = SourceSetting(Split.EVALUATION)
    return load_table(job.spec, setting, source, tokenizer, PROMPTS_ONLY)


def answers(
    folder: Path, job: RLHFJob, prompts: PromptTable, tokenizer: TextTokenizer, rows: range
) -> list[str]:
    """Return a model's greedy responses to the first prompts."""
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts = []
    for prompt in list(prompts.prompts.runs())[: len(rows)]:
        tokens = torch.as_tensor(prompt, dtype=torch.int64)[None]
        with torch.inference_mode():
            (ids,) = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=job.spec.rollout.max_response_tokens,
                do_sample=False,
                eos_token_id=list(tokenizer.end_token_ids),
                pad_token_id=tokenizer.pad_token_id,
            )
        response = [
            token for token in ids[len(prompt) :].tolist() if token not in tokenizer.end_token_ids
        ]
        texts.append(tokenizer.text_of(response))
    return texts


if __name__ == "__main__":
    main()
