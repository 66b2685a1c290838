"""Jobs on conversations, and what transformers computes of the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

Message = dict[str, str]
LENGTHS = {"maxPromptTokens": 96, "maxResponseTokens": 32}
SUBJECTS = ("a cat", "the sea", "bread", "snow", "a clock", "jazz", "rice", "ice", "wool")


def conversations(count: int) -> list[list[Message]]:
    """Conversations of one or two questions, some with a system message; the last is an answer."""
    rows = []
    for number in range(count):
        subject = SUBJECTS[number % len(SUBJECTS)]
        messages = [{"role": "system", "content": "Be brief."}] if number % 3 == 0 else []
        for question in ("What is {}?", "And in one word, naïvely?")[: 1 + number % 2]:
            messages.append({"role": "user", "content": question.format(subject)})
            messages.append({"role": "assistant", "content": f"Number {number}:\n{subject} 🐈."})
        rows.append(messages)
    return rows


def write_job(file: Path, algorithm: str, role: str, model: Path, **sections: Any) -> Path:
    """Write a job that trains one role."""
    spec: dict[str, Any] = {
        "algorithm": {"type": algorithm},
        "models": {role: {"source": {"path": str(model)}, "training": {"learningRate": 1e-4}}},
        "rollout": LENGTHS,
        **sections,
    }
    head = {"apiVersion": "rlhf-operator.dev/v1alpha1", "kind": "RLHFJob"}
    manifest = {**head, "metadata": {"name": algorithm.lower()}, "spec": spec}
    file.write_text(yaml.safe_dump(manifest, sort_keys=False))
    return file


def answer_log_probs(
    folder: Path, rows: Sequence[Sequence[Mapping[str, str]]]
) -> list[torch.Tensor]:
    """Log-probabilities of the tokens of every last message, its end token included."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    result = []
    for messages in rows:
        prompt = tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, return_dict=False
        )
        complete = tokenizer.apply_chat_template(messages, return_dict=False)
        assert complete[: len(prompt)] == prompt
        # The template writes a newline behind the end token, which is not trained on.
        end = len(complete) - complete[::-1].index(tokenizer.eos_token_id)
        tokens = torch.tensor([complete[:end]])
        with torch.inference_mode():
            log_probs = model(tokens).logits[0, :-1].log_softmax(-1)
        chosen = log_probs.gather(1, tokens[0, 1:, None])[:, 0]
        result.append(chosen[len(prompt) - 1 :])
    return result
