"""Mistakes of a user, through the real command: code, message, and no leftovers.

Most are refused before anything starts (tests/rlhf_cli/mistakes.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_runtime.models.tiny_llama import write_tiny_llama

from .cli import run
from .manifests import digit_rows, example, write_rows
from .records import end

pytestmark = pytest.mark.ray


def test_a_model_that_the_engine_cannot_compute_ends_the_run_before_its_warm_start(
    scratch: Path,
) -> None:
    # The planner cannot read this family's config.json, so it uses the manifest's shape. vLLM reads
    # it.
    folder = scratch / "narrow-heads"
    write_narrow_heads(folder)
    shape = {"numLayers": 2, "hiddenSize": 128, "intermediateSize": 512, "numAttentionHeads": 8}
    shape |= {"numKeyValueHeads": 8, "headDim": 32, "vocabSize": 64}
    actor = {"source": {"builtin": None, "path": str(folder)}, "shape": shape}
    ended = run(
        example("01", scratch / "narrow.yaml", {"models": {"actor": actor}}), scratch / "narrow"
    )
    assert ended.code == 3, ended.output
    last = end(ended.folder)
    assert (last["outcome"], last["reason"]) == ("failed", "UnsupportedModel")
    assert "model of actor: got RuntimeError at its first token" in last["message"], last["message"]
    assert "head_dim=16" in last["message"]
    assert "Traceback" not in ended.output and "ray::" not in ended.output, ended.output
    assert ended.output.splitlines()[-1] == f"UnsupportedModel: {last['message']}"
    assert "warm_start" not in ended.output and "restart" not in ended.output
    assert "Traceback" in (ended.folder / "logs" / "rank-0.log").read_text()


def write_narrow_heads(folder: Path) -> None:
    """Write the builtin model as one of another family, with eight heads of 16."""
    # The family computes alike, and the tensors of four heads of 32 have the same shapes.
    write_tiny_llama(folder, seed=5)
    file = folder / "config.json"
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16}
    family = {"model_type": "granite", "architectures": ["GraniteForCausalLM"]}
    file.write_text(json.dumps(json.loads(file.read_text()) | heads | family))


def test_all_mistakes_are_reported_at_once(scratch: Path) -> None:
    rows = [dict(row) for row in digit_rows(8)]
    rows[7]["prompt"] = "40299140299="
    data = write_rows(scratch / "long.jsonl", rows)
    change = {
        "models": {"actor": {"source": {"path": "/no/such/model", "builtin": None}}},
        "data": {"train": {"path": "/no/such/rows.jsonl", "builtin": None}},
        "schedule": {"warmStart": None},
    }
    ended = run(example("01", scratch / "gone.yaml", change), scratch / "gone")
    assert ended.code == 3, ended.output
    model_error, rows_error, counted = ended.output.splitlines()
    assert model_error.startswith("ModelNotFound: ") and "/no/such/model" in model_error
    assert rows_error.startswith(f"DataNotFound: {scratch / 'gone.yaml'}:") and (
        ": data.train.path is not a file: got /no/such/rows.jsonl" in rows_error
    )
    assert counted == "SeveralErrors: 2 problems"
    assert not ended.folder.exists()
    change = {
        "data": {"train": {"path": str(data), "builtin": None}},
        "schedule": change["schedule"],
    }
    ended = run(example("01", scratch / "long.yaml", change), scratch / "long")
    assert ended.code == 3 and "PromptTooLong: " in ended.output, ended.output
    assert "row 7 with 12 tokens; allowed rollout.maxPromptTokens = 8" in ended.output
    assert "startup" not in ended.output and not ended.folder.exists()
