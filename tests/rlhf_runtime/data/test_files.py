from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rlhf_api.spec.data import DataSource
from rlhf_runtime.data.errors import DataNotFound, DataUnreadable, EmptyDataset
from rlhf_runtime.data.files import read_file
from rlhf_runtime.data.rows import Split, read_rows

ROWS = [{"prompt": "a", "count": 1}, {"prompt": "b", "count": None}]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path) -> list[Any]:
    return list(read_file(str(path), setting="data.train.path"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", "\n".join(map(json.dumps, ROWS))),
        ("rows.jsonl", "\n" + "\n\n".join(map(json.dumps, ROWS)) + "\n\n"),
        ("rows.json", json.dumps(ROWS, indent=2)),
        ("rows.json", "\n".join(map(json.dumps, ROWS))),
    ],
    ids=["jsonl", "jsonl with blank lines", "json list", "json lines named .json"],
)
def test_json_files_are_read(tmp_path: Path, name: str, text: str) -> None:
    assert read(write(tmp_path / name, text)) == ROWS


def test_parquet_files_are_read(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert read(tmp_path / "rows.parquet") == ROWS


def test_jsonl_is_read_as_it_is_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", '{"prompt": "a"}\nbroken\n')
    assert next(iter(read_file(str(file), "data.train.path"))) == {"prompt": "a"}


def test_max_rows_takes_the_first_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, ROWS)) + "\nbroken\n")
    source = DataSource(path=str(file), max_rows=2)
    assert list(read_rows(source, Split.TRAIN, seed=0)) == ROWS


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"data\.train\.path.*nowhere\.jsonl") as caught:
        read(tmp_path / "nowhere.jsonl")
    assert (caught.value.reason, int(caught.value.exit_code)) == ("DataNotFound", 3)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="a folder"):
        read(tmp_path)


def test_an_unknown_ending_is_refused_with_those_allowed(tmp_path: Path) -> None:
    with pytest.raises(DataUnreadable, match=r"rows\.csv.*\.parquet, \.jsonl, \.json"):
        read(write(tmp_path / "rows.csv", "a,b"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_a_file_of_no_bytes_is_an_empty_dataset(tmp_path: Path, name: str) -> None:
    with pytest.raises(EmptyDataset, match="0 bytes"):
        read(write(tmp_path / name, ""))


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataUnreadable, match="line 2"):
        read(write(tmp_path / "rows.jsonl", '{"prompt": "a"}\n{"prompt": \n'))


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataUnreadable, match="got str in .*line 1"):
        read(write(tmp_path / "rows.jsonl", '"a"\n'))


def test_an_entry_that_is_no_object_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataUnreadable, match="entry 1"):
        read(write(tmp_path / "rows.json", '[{"prompt": "a"}, 3]'))


@pytest.mark.parametrize("text", ["[1,", '{"a": 1'])
def test_broken_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataUnreadable, match="not valid JSON"):
        read(write(tmp_path / "rows.json", text))


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataUnreadable, match="parquet"):
        read(write(tmp_path / "rows.parquet", "PAR1 but no more"))


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes('{"prompt": "é"}'.encode("latin-1"))
    with pytest.raises(DataUnreadable, match="UTF-8"):
        read(tmp_path / "rows.jsonl")
