"""A real language model, whole and cut to its first layers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ..cli import ROOT

PROGRAM = ROOT / "tools" / "real_model" / "make_model.py"
NUM_LAYERS = 4


@pytest.fixture(scope="session")
def demo(scratch: Path) -> Path:
    """Folder with the model and the rows of `make demo-real`."""
    folder = scratch / "smollm2"
    uv = Path(sys.executable).with_name("uv")
    for _ in range(2):  # the second time finds everything there
        subprocess.run([sys.executable, PROGRAM, folder, f"--uv={uv}"], check=True)
    assert sorted(path.name for path in folder.iterdir()) == [
        "held-out.jsonl",
        "model",
        "train.jsonl",
    ]
    return folder


@pytest.fixture(scope="session")
def cut_model(demo: Path, scratch: Path) -> Path:
    """The model's first layers, with its tokenizer: 43 million parameters."""
    folder = scratch / "cut"
    shutil.copytree(demo / "model", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    model = AutoModelForCausalLM.from_pretrained(demo / "model", num_hidden_layers=NUM_LAYERS)
    model.save_pretrained(folder)
    return folder
