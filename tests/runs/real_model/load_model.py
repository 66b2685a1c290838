"""Loads a model's folder in transformers and in vLLM, and prints what each answers to a prompt.

Arguments: the folder, and the prompt. Prints one object: for each library the tokens and their
log-probabilities, of a greedy answer to the prompt in the model's chat template.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import LLM, SamplingParams

NUM_TOKENS = 8


def main(folder: str, prompt: str) -> None:
    messages = [{"role": "user", "content": prompt}]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answer = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NUM_TOKENS)
    tokens = answer[0, len(ids) :]
    with torch.no_grad():
        log_probs = model(answer).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    chosen = log_probs.gather(-1, tokens[:, None])[:, 0]

    engine = LLM(
        folder,
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=16 << 20,
        max_model_len=len(ids) + NUM_TOKENS,
        max_num_seqs=1,
    )
    settings = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, logprobs=0)
    (output,) = engine.generate([{"prompt_token_ids": ids}], settings)
    completion = output.outputs[0]
    their_log_probs = [
        step[token].logprob
        for token, step in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    answers = {
        "transformers": {"tokens": tokens.tolist(), "log_probs": chosen.tolist()},
        "vllm": {"tokens": list(completion.token_ids), "log_probs": their_log_probs},
    }
    print(json.dumps(answers))


main(*sys.argv[1:])
