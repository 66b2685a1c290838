"""What a user can get wrong, through the real command: code, message, and nothing left behind.

What only shows while workers start is tried three commands at a time, to use their waiting.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.models.tiny_llama import write_tiny_llama

from .cli import Finished, run
from .manifests import digit_rows, example, write_rows
from .records import end


@dataclass(frozen=True)
class Mistake:
    """Something that is found out while workers start."""

    reason: str
    says: tuple[str, ...]
    rows: list[dict[str, Any]] | None = None
    """Training data instead of the builtin task."""
    change: dict[str, Any] = field(default_factory=dict)


def rows(count: int = 8, **last: Any) -> list[dict[str, Any]]:
    """Good rows; the last one with changes."""
    good = [dict(row) for row in digit_rows(count)]
    good[-1].update(last)
    return good


MISTAKES = {
    "NaN in the data": Mistake(
        "InvalidRow", ("row 7", "weight", "onInvalidRow"), rows(weight=float("nan"))
    ),
    "an empty file": Mistake("EmptyDataset", ("data.train.path", "0 bytes"), []),
    "fewer rows than a batch": Mistake(
        "DatasetTooSmall", ("5", "schedule.promptsPerStep", "8"), rows(5)
    ),
    "a prompt over the limit": Mistake(
        "PromptTooLong", ("row 7", "12 tokens", "maxPromptTokens = 8"), rows(prompt="40299140299=")
    ),
    "roles that disagree on tokens": Mistake(
        "VocabularyMismatch",
        ("actor", "reference"),
        change={
            "algorithm": {"grpo": {"klCoefficient": 0.1}},
            "models": {"reference": {"source": {"path": "OTHER_MODEL"}}},
        },
    ),
    "a verifier that does not import": Mistake(
        "InvalidReward",
        ("no_such_module",),
        change={"rewards": [{"function": {"entrypoint": "no_such_module:score"}}]},
    ),
    "a warm start by what no verifier measures": Mistake(
        "InvalidReward",
        ("schedule.warmStart.stopAtExactMatch", "got reward (none)", '@measures("exact_match")'),
        change={
            "rewards": [{"function": {"entrypoint": "rlhf_runtime.rewards.length:penalty"}}],
            "schedule": {"warmStart": {"maxSteps": 1, "stopAtExactMatch": 0.5}},
        },
    ),
}


def make(name: str, place: Path) -> Finished:
    """Run a job with a mistake."""
    mistake = MISTAKES[name]
    stem = name.replace(" ", "-")
    change: dict[str, Any] = json.loads(json.dumps(mistake.change))
    if mistake.rows is not None:
        data = write_rows(place / f"{stem}.jsonl", mistake.rows)
        change["data"] = {"train": {"path": str(data), "builtin": None}}
        change["schedule"] = {"warmStart": None}
    if "models" in change:
        change["models"]["reference"]["source"]["path"] = str(other_model(place))
    manifest = example("01", place / f"{stem}.yaml", change)
    return run(manifest, place / stem, "--devices", 1)


def other_model(place: Path) -> Path:
    """A model of the same size whose tokens 3 and 4 have changed places."""
    folder = place / "other-model"
    write_tiny_llama(folder, seed=5)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["0"], vocabulary["1"] = vocabulary["1"], vocabulary["0"]
    file.write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.ray
@pytest.mark.parametrize("name", list(MISTAKES))
def test_a_mistake_ends_the_run_with_its_reason(place: Path, name: str) -> None:
    mistake, ended = MISTAKES[name], make(name, place)
    assert ended.code == 3, ended.output
    last = end(ended.folder)
    assert (last["outcome"], last["reason"]) == ("failed", mistake.reason)
    assert all(text in last["message"] for text in mistake.says), last["message"]
    assert "Traceback" not in ended.output and "ray::" not in ended.output, ended.output
    assert ended.output.splitlines()[-1] == f"{mistake.reason}: {last['message']}"


# Before anything starts


def test_a_model_that_is_not_there_is_named(place: Path) -> None:
    change = {"models": {"actor": {"source": {"path": "/no/such/model", "builtin": None}}}}
    ended = run(example("01", place / "gone.yaml", change), place / "gone")
    assert ended.code in (2, 3) and "/no/such/model" in ended.output, ended.output
    assert "startup" not in ended.output and not (ended.folder / "metrics.jsonl").exists()


def test_a_file_of_data_that_is_not_there_is_named(place: Path) -> None:
    change = {"data": {"train": {"path": "/no/such/rows.jsonl", "builtin": None}}}
    change["schedule"] = {"warmStart": None}
    ended = run(example("01", place / "no-data.yaml", change), place / "no-data")
    assert ended.code == 3 and "DataNotFound" in ended.output, ended.output
    assert "data.train.path" in ended.output and "/no/such/rows.jsonl" in ended.output
    assert not ended.folder.exists()


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("kind", "PyTorchJob", "RLHFJob"),
        ("apiVersion", "rlhf-operator.dev/v1", "rlhf-operator.dev/v1alpha1"),
    ],
)
def test_a_manifest_of_another_kind_or_version_is_refused(
    place: Path, key: str, value: str, allowed: str
) -> None:
    manifest = example("01", place / f"other-{key}.yaml")
    text = manifest.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{key}:")]
    manifest.write_text(text.replace(line, f"{key}: {value}"))
    ended = run(manifest, place / f"other-{key}")
    assert ended.code == 2, ended.output
    assert value in ended.output and allowed in ended.output
    assert not ended.folder.exists()


def test_a_job_that_cannot_fit_is_refused_with_the_sum(place: Path) -> None:
    huge = {
        "numLayers": 80,
        "hiddenSize": 8192,
        "intermediateSize": 28672,
        "numAttentionHeads": 64,
        "numKeyValueHeads": 8,
        "headDim": 128,
        "vocabSize": 128256,
    }
    manifest = example("01", place / "huge.yaml", {"models": {"actor": {"shape": huge}}})
    ended = run(manifest, place / "huge", "--devices", 2)
    assert ended.code == 2, ended.output
    assert "DoesNotFit" in ended.output and "sum" in ended.output and "GiB" in ended.output
    assert not (ended.folder / "metrics.jsonl").exists()


def test_a_folder_that_another_run_holds_is_refused(place: Path) -> None:
    folder = place / "held"
    folder.mkdir()
    lock = folder / ".lock"
    lock.write_text(str(os.getpid()))
    with lock.open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        ended = run(example("01", place / "held.yaml"), folder)
    assert ended.code == 2, ended.output
    assert "FolderInUse" in ended.output and str(os.getpid()) in ended.output
    assert [entry.name for entry in folder.iterdir()] == [".lock"]
