"""A real language model, whole and cut to its first layers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ..cli import ROOT

PROGRAM = ROOT / "tools" / "real_model" / "make_model.py"
NUM_LAYERS = 4
# Folders of `scratch` that tests share.
DEMO, CUT = "smollm2", "cut"


@pytest.fixture(autouse=True)
def runs_are_removed(scratch: Path) -> Iterator[None]:
    """Remove the run folders of a test: the checkpoints of a real model take gigabytes."""
    before = {*scratch.iterdir()}
    yield
    for folder in {*scratch.iterdir()} - before:
        if folder.is_dir() and folder.name not in (DEMO, CUT):
            shutil.rmtree(folder)


@pytest.fixture(scope="session")
def demo(scratch: Path) -> Path:
    """Folder with the models and the rows of `make demo-real` and `make demo-tool`."""
    folder = scratch / DEMO
    uv = Path(sys.executable).with_name("uv")
    for _ in range(2):  # the second time finds everything there
        subprocess.run([sys.executable, PROGRAM, folder, f"--uv={uv}"], check=True)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("calculations-held-out.jsonl", "calculations.jsonl", "held-out.jsonl", "model"),
        *("tool-model", "train.jsonl"),
    ]
    return folder


@pytest.fixture(scope="session")
def cut_model(demo: Path, scratch: Path) -> Path:
    """The model's first layers, with its tokenizer: 43 million parameters."""
    folder = scratch / CUT
    shutil.copytree(demo / "model", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    model = AutoModelForCausalLM.from_pretrained(demo / "model", num_hidden_layers=NUM_LAYERS)
    model.save_pretrained(folder)
    return folder
