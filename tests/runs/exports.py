"""`rlhf export` of a finished run, whose own model is the oracle."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from .cli import start


def assert_exports_own_model(run: Path, out: Path) -> None:
    """Check that the newest checkpoint gives the run's own model, bit by bit."""
    command = start(["export", run, out], out.with_suffix(".log"))
    try:
        assert command.wait() == 0, command.output
    finally:
        command.end()
    assert "the newest complete checkpoint is of step" in command.output
    assert_own_model(run, out)


def assert_own_model(run: Path, out: Path) -> None:
    """Check that a folder has the run's own model, bit by bit."""
    ours, left = (load_file(folder / "model.safetensors") for folder in (out, run / "model"))
    assert ours.keys() == left.keys()
    for name, tensor in left.items():
        assert ours[name].dtype is tensor.dtype and torch.equal(ours[name], tensor), name
    for folder in (out, run / "model"):
        assert AutoModelForCausalLM.from_pretrained(folder).config.use_cache
        assert AutoTokenizer.from_pretrained(folder)("402991=")["input_ids"]
    assert {file.name for file in out.iterdir()} == {
        file.name for file in (run / "model").iterdir()
    }
