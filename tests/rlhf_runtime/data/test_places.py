"""A row is found by its file and line, whatever the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.spec.data import DataSource
from rlhf_runtime.data.files import read_file
from rlhf_runtime.data.places import place_of


def test_a_line_is_counted_over_blank_ones(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('\n{"n": 0}\n\n  \n{"n": 1}\n{"n": 2}')
    lines = file.read_text().splitlines()
    for row, value in enumerate(read_file(str(file), "data.train.path")):
        place = place_of(DataSource(path=str(file)), row)
        assert place.startswith(f"{file}, line ")
        assert lines[int(place.rpartition(" ")[2]) - 1] == f'{{"n": {value["n"]}}}'


@pytest.mark.parametrize(
    ("name", "text"), [("rows.json", '[{"n": 0},\n{"n": 1}]'), ("rows.parquet", "")]
)
def test_a_file_without_lines_has_numbers(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert place_of(DataSource(path=str(file)), 1) == f"{file}, row 1, counted from 0"


def test_a_file_that_is_elsewhere_and_other_data_have_numbers(tmp_path: Path) -> None:
    gone = tmp_path / "gone.jsonl"
    assert place_of(DataSource(path=str(gone)), 3) == f"{gone}, row 3, counted from 0"
    hub = DataSource(hugging_face="openai/gsm8k", split="test")
    assert place_of(hub, 3) == "openai/gsm8k, split test, row 3, counted from 0"
