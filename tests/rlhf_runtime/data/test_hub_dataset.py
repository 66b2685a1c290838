"""Hugging Face datasets without a network: a process of its own, because the offline switch and the
cache's place are read when `datasets` is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import datasets
import pytest
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.errors import DataError
from rlhf_runtime.data.hub_dataset import read_dataset

PREPARE = """
    import datasets, shutil, sys
    from pathlib import Path
    folder, home = Path(sys.argv[1]), Path(sys.argv[2])
    datasets.load_dataset(str(folder), "main")
    shutil.move(home / "datasets" / folder.name, home / "datasets" / f"openai___{folder.name}")
"""
READ = """
    import json, sys
    from rlhf_api.spec.row_sources import DataSource
    from rlhf_runtime.data.errors import DataError
    from rlhf_runtime.data.rows import read_rows
    from rlhf_runtime.data.source_setting import SourceSetting, Split
    answers = []
    for case in json.loads(sys.argv[1]):
        split = SourceSetting(Split(case.pop("as")))
        try:
            rows = list(read_rows(DataSource.model_validate(case), split, seed=0))
            answers.append({"rows": rows})
        except DataError as error:
            answers.append({"reason": error.reason, "text": str(error)})
    print(json.dumps({"answers": answers, "torch": "torch" in sys.modules}))
"""
CONFIGURATION = """\
---
configs:
- config_name: main
  data_files:
  - {split: train, path: train.jsonl}
  - {split: test, path: test.jsonl}
---
"""


def run(code: str, home: Path, *arguments: str) -> str:
    """The output of a Python program without network and with a cache of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={
            **os.environ,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture
def dataset(tmp_path: Path, problems: list[dict[str, str]]) -> Path:
    """A dataset folder as it lies on the hub: configuration `main`, splits train and test."""
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    (folder / "README.md").write_text(CONFIGURATION)
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, problems[:6])))
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, problems[6:])))
    return folder


def test_datasets_are_read_from_the_cache_without_a_network(
    tmp_path: Path, dataset: Path, problems: list[dict[str, str]]
) -> None:
    home = tmp_path / "home"
    run(PREPARE, home, str(dataset), str(home))
    gsm8k = {"huggingFace": "openai/gsm8k", "configuration": "main"}
    cases = [
        {"as": "train", **gsm8k},
        {"as": "evaluation", **gsm8k},
        {"as": "train", **gsm8k, "split": "test", "maxRows": 1},
        {"as": "train", **gsm8k, "configuration": "socratic"},
        {"as": "train", **gsm8k, "split": "validation"},
        {"as": "train", "huggingFace": "openai/other"},
        {"as": "train", "huggingFace": str(dataset), "configuration": "main"},
        {"as": "train", "huggingFace": str(dataset), "configuration": "main", "split": "dev"},
    ]
    result = json.loads(run(READ, home, json.dumps(cases)).splitlines()[-1])
    train, evaluation, first, configuration, split, other, local, local_split = result["answers"]
    assert train == {"rows": problems[:6]}
    assert evaluation == {"rows": problems[6:]}
    assert first == {"rows": problems[6:7]}
    assert local == {"rows": problems[:6]}
    assert {answer["reason"] for answer in (configuration, split, other, local_split)} == {
        "DataNotFound"
    }
    assert "data.train.configuration" in configuration["text"]
    assert "socratic" in configuration["text"]
    assert "main" in configuration["text"]
    assert "data.train.split" in split["text"]
    assert "data.train.split" in local_split["text"]
    assert "train" in local_split["text"]
    assert "local cache" in other["text"]
    assert "HF_HOME" in other["text"]
    assert not result["torch"]


@pytest.mark.parametrize(
    ("error", "reason", "told"),
    [
        (
            DatasetNotFoundError("Dataset 'acme/x' is a gated dataset on the Hub."),
            "DataNotFound",
            "gated.*HF_TOKEN",
        ),
        (
            DatasetNotFoundError("Dataset 'acme/x' doesn't exist on the Hub"),
            "DataNotFound",
            "does not exist or is private.*HF_TOKEN",
        ),
        (
            ValueError("Config name is missing. Please pick one: ['main', 'socratic']"),
            "DataNotFound",
            r"data\.train\.configuration.*got none.*'socratic'",
        ),
        (DatasetGenerationError("bad bytes"), "DataUnreadable", "cannot be read.*bad bytes"),
    ],
)
def test_what_the_hub_refuses_is_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, told: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(DataError, match=told) as caught:
        read_dataset(DataSource(hugging_face="acme/x"), "train", "data.train")
    assert caught.value.reason == reason
