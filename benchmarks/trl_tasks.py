"""Prompts and rewards of the jobs that TRL runs. Used in TRL's own environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from task import SUMS_INSTRUCTION, decode, digit_share, encode, exact_match
from transformers import AutoTokenizer

from rlhf_runtime.data.sort_digits import evaluation_rows, training_rows
from rlhf_runtime.rewards.math import verify
from rlhf_runtime.rewards.sample import Sample


class SortTask:
    """Digits to sort, as the builtin data has them; a reward for one response and its answer."""

    def __init__(self, score: Callable[[str, str], float], _folder: Path, seed: int) -> None:
        self.rows = [dict(row) for row in training_rows(seed)]
        self._held_out = list(evaluation_rows(seed))
        self._score = score

    def rewards(self, completions: list[str], answer: list[str], **_: Any) -> list[float]:
        """Scores, as TRL wants them."""
        return [self._score(text, right) for text, right in zip(completions, answer, strict=True)]

    def evaluate(self, model: Any, max_new_tokens: int) -> float:
        """Mean score of greedy answers to held-out prompts."""
        # All prompts are equally long.
        prompts = torch.tensor([encode(row["prompt"]) for row in self._held_out])
        answers = generate(model, prompts, torch.ones_like(prompts), max_new_tokens)
        texts = [decode(answer) for answer in answers.tolist()]
        return mean(self.rewards(texts, [row["answer"] for row in self._held_out]))


class SumsTask:
    """Sums, as `make demo-real` has them, in the model's chat template."""

    def __init__(self, folder: Path, _seed: int) -> None:
        self.rows = [conversation(row) for row in read_rows(folder.parent / "train.jsonl")]
        self._held_out = [conversation(row) for row in read_rows(folder.parent / "held-out.jsonl")]
        # Answers begin behind the last token of a prompt.
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")

    def rewards(self, completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
        """Scores, as TRL wants them."""
        return score_texts([messages[0]["content"] for messages in completions], answer)

    def evaluate(self, model: Any, max_new_tokens: int) -> float:
        """Mean score of greedy answers to held-out prompts."""
        prompts = self._tokenizer.apply_chat_template(
            [row["prompt"] for row in self._held_out],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        answers = generate(model, prompts["input_ids"], prompts["attention_mask"], max_new_tokens)
        texts = self._tokenizer.batch_decode(answers, skip_special_tokens=True)
        return mean(score_texts(texts, [row["answer"] for row in self._held_out]))


TASKS: Mapping[str, Callable[[Path, int], SortTask | SumsTask]] = {
    "sort": lambda folder, seed: SortTask(exact_match, folder, seed),
    "digits": lambda folder, seed: SortTask(digit_share, folder, seed),
    "sums": SumsTask,
}
"""Tasks by name; made of the model's folder and a seed."""


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Rows of a file with a JSON object in each line."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def conversation(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as TRL expects conversations."""
    # TRL applies the chat template to prompts of this form only.
    messages = [
        {"role": "system", "content": SUMS_INSTRUCTION},
        {"role": "user", "content": row["question"]},
    ]
    return {"prompt": messages, "answer": str(row["answer"])}


def score_texts(texts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """Scores by our verifier of final answers."""
    return verify(
        [
            Sample("", text, {"answer": answer}, finished=True)
            for text, answer in zip(texts, answers, strict=True)
        ]
    )


@torch.no_grad()
def generate(
    model: Any, prompts: torch.Tensor, mask: torch.Tensor, max_new_tokens: int
) -> torch.Tensor:
    """Greedy answers; rows x tokens."""
    tokens: torch.Tensor = model.generate(
        prompts, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens
    )
    return tokens[:, prompts.shape[1] :]


def mean(values: Sequence[float]) -> float:
    """Mean of values."""
    return sum(values) / len(values)
