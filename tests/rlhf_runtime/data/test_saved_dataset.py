"""Folders of Dataset.save_to_disk, and of DatasetDict.save_to_disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.errors import DataNotFound, DataUnreadable, MissingField
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.named_columns import require_columns_of_path
from rlhf_runtime.data.row_location import RowLocations
from rlhf_runtime.data.rows import find_folder, read_rows
from rlhf_runtime.data.source_setting import SourceSetting, Split

ROWS: dict[str, list[Any]] = {
    "prompt": ["a", "b", "c"],
    "label": [0, 1, 1],
    "score": [0.1, None, 0.3],
    "nested": [{"truth": ["1"]}, {"truth": []}, None],
}
FEATURES = datasets.Features(
    {
        "prompt": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "score": datasets.Value("float32"),
        "nested": {"truth": datasets.List(datasets.Value("string"))},
    }
)


@pytest.fixture(autouse=True)
def _without_bars() -> None:
    datasets.disable_progress_bars()


def dataset() -> datasets.Dataset:
    return datasets.Dataset.from_dict(ROWS, features=FEATURES)


def read(path: Path, role: Split = Split.TRAIN, **changes: Any) -> list[Row]:
    return list(read_rows(DataSource(path=str(path), **changes), SourceSetting(role), seed=0))


def test_rows_are_those_that_were_saved(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path, num_shards=2)
    assert read(tmp_path) == [
        {"prompt": "a", "label": 0, "score": 0.1, "nested": {"truth": ["1"]}},
        {"prompt": "b", "label": 1, "score": None, "nested": {"truth": []}},
        {"prompt": "c", "label": 1, "score": 0.3, "nested": None},
    ]
    assert [row["prompt"] for row in read(tmp_path, max_rows=2)] == ["a", "b"]


def test_a_selection_and_a_format_are_saved_with_their_rows_only(tmp_path: Path) -> None:
    chosen = dataset().select([2, 0])
    chosen.set_format("numpy", columns=["label"])
    chosen.save_to_disk(tmp_path)
    assert [(row["prompt"], row["label"]) for row in read(tmp_path)] == [("c", 1), ("a", 0)]


def test_splits_of_a_folder_have_the_defaults_of_the_hub(tmp_path: Path) -> None:
    parts = {name: dataset().select([number]) for number, name in enumerate(("train", "test", "x"))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path)
    assert [row["prompt"] for row in read(tmp_path)] == ["a"]
    assert [row["prompt"] for row in read(tmp_path, Split.PRETRAINING)] == ["a"]
    assert [row["prompt"] for row in read(tmp_path, Split.EVALUATION)] == ["b"]
    assert [row["prompt"] for row in read(tmp_path, split="x")] == ["c"]


def test_a_split_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": dataset(), "dev": dataset()}).save_to_disk(tmp_path)
    with pytest.raises(
        DataNotFound, match=r"data\.train\.split .*: got x, allowed train, dev; set data\.train\.sp"
    ) as caught:
        read(tmp_path, split="x")
    assert caught.value.location == ("spec", "data", "train", "split")
    with pytest.raises(
        DataNotFound, match=r"got test, the default of data\.evaluation, allowed train, dev"
    ):
        read(tmp_path, Split.EVALUATION)


def test_a_folder_of_one_dataset_has_its_own_split_only(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path)
    assert len(read(tmp_path, Split.EVALUATION)) == 3
    with pytest.raises(DataNotFound, match="got test, allowed none: the folder is one dataset"):
        read(tmp_path, split="test")
    state = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**state, "_split": "test"}))
    assert len(read(tmp_path, split="test")) == 3


def test_files_have_no_splits(tmp_path: Path) -> None:
    source = DataSource(path=str(tmp_path / "*"), split="test")
    assert source.path is not None
    with pytest.raises(DataNotFound, match=r"got test with .*/\*, allowed no split of files"):
        find_folder(source.path, "data.train.path", source, SourceSetting(Split.TRAIN))


def test_columns_of_media_are_no_part_of_rows(tmp_path: Path) -> None:
    image = datasets.Features(
        {"prompt": datasets.Value("string"), "pictures": datasets.List(datasets.Image())}
    )
    pictures = [[{"bytes": b"x", "path": None}]]
    datasets.Dataset.from_dict({"prompt": ["a"], "pictures": pictures}, image).save_to_disk(
        tmp_path
    )
    assert read(tmp_path) == [{"prompt": "a"}]
    source = DataSource(path=str(tmp_path), prompt_field="pictures")
    with pytest.raises(MissingField, match="promptField names a column of type Image: got picture"):
        require_columns_of_path(source, SourceSetting(Split.TRAIN))


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path)
    (file,) = tmp_path.glob("*.arrow")
    content = file.read_bytes()
    file.write_bytes(b"x" * 64 + content[64:])
    with pytest.raises(DataUnreadable, match=r"not a readable file .*\.arrow"):
        read(tmp_path)
    file.unlink()
    with pytest.raises(DataNotFound, match=r"got .* without data-00000-of-00001\.arrow") as caught:
        read(tmp_path)
    assert caught.value.location == ("spec", "data", "train", "path")
    (tmp_path / "dataset_info.json").write_text("{")
    with pytest.raises(DataUnreadable, match=r"dataset_info\.json, which is not JSON"):
        read(tmp_path)
    (tmp_path / "dataset_info.json").unlink()
    with pytest.raises(DataUnreadable, match=r"dataset_info\.json \(No such file"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("state.json", "[]", "a list, allowed a map"),
        ("state.json", "{}", "no _data_files, allowed a list"),
        ("state.json", '{"_data_files": 3}', "_data_files of type int, allowed a list"),
        ("state.json", '{"_data_files": ["x.arrow"]}', "an entry of _data_files that names no"),
        ("dataset_info.json", '{"features": ["a"]}', "features of type list, allowed a map"),
        ("dataset_dict.json", '{"splits": null}', "no splits, allowed a list"),
    ],
)
def test_a_description_of_another_form_is_named(
    tmp_path: Path, name: str, content: str, problem: str
) -> None:
    dataset().save_to_disk(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(DataUnreadable, match=rf"{name} with {problem}"):
        read(tmp_path)


def test_a_row_is_located_by_its_number(tmp_path: Path) -> None:
    datasets.DatasetDict({"x": dataset()}).save_to_disk(tmp_path)
    source = DataSource(path=str(tmp_path), split="x")
    assert RowLocations().find(source, [2]) == [f"{tmp_path}, split x, row 2, counted from 0"]
