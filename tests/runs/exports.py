"""`rlhf export` of a run that has ended, whose own model is the oracle."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from .cli import start


def assert_exported_as_left(run: Path, out: Path) -> None:
    """Its newest checkpoint gives the model that the run has left, bit by bit."""
    command = start(["export", run, out], out.with_suffix(".log"))
    try:
        assert command.wait() == 0, command.output
    finally:
        command.end()
    assert "the newest complete checkpoint is of step" in command.output
    ours, left = (load_file(folder / "model.safetensors") for folder in (out, run / "model"))
    assert ours.keys() == left.keys()
    for name, tensor in left.items():
        assert ours[name].dtype is tensor.dtype and torch.equal(ours[name], tensor), name
    for folder in (out, run / "model"):
        assert AutoModelForCausalLM.from_pretrained(folder).config.use_cache
        assert AutoTokenizer.from_pretrained(folder)("402991=")["input_ids"]
    assert {each.name for each in out.iterdir()} == {
        each.name for each in (run / "model").iterdir()
    }
