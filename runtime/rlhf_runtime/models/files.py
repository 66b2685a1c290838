"""What lies in a model's folder besides its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5"})
MODEL_FILES = frozenset(
    {"config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"}
)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy everything but weights and their configuration: tokenizer, chat template, licence."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        is_model = file.name in MODEL_FILES or file.suffix in WEIGHT_SUFFIXES
        if file.is_file() and not is_model and not (target / file.name).exists():
            shutil.copyfile(file, target / file.name)
