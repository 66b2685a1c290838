"""A row is found by its file and line, whatever the file, and without reading it again."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data import row_location
from rlhf_runtime.data.files import read_file
from rlhf_runtime.data.row_location import LineIndex, RowLocations


def test_a_line_is_counted_over_blank_ones(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('\n{"n": 0}\n\n  \n{"n": 1}\n{"n": 2}')
    lines = file.read_text().splitlines()
    rows = list(read_file(file, "data.train.path"))
    found = RowLocations().find(DataSource(path=str(file)), range(len(rows)))
    for location, row in zip(found, rows, strict=True):
        assert location.startswith(f"{file}, line ")
        assert lines[int(location.rpartition(" ")[2]) - 1] == f'{{"n": {row["n"]}}}'


@pytest.mark.parametrize(
    ("name", "text"), [("rows.json", '\n [{"n": 0},\n{"n": 1}]'), ("rows.parquet", "")]
)
def test_a_file_without_lines_has_numbers(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    found = RowLocations().find(DataSource(path=str(file)), [1, 0])
    assert found == [f"{file}, row 1, counted from 0", f"{file}, row 0, counted from 0"]


def test_a_row_of_several_files_is_located_in_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 0}\n\n{"n": 1}\n')
    (tmp_path / "b.json").write_text('[{"n": 2}, {"n": 3}]')
    pyarrow.parquet.write_table(pyarrow.table({"n": [4, 5]}), tmp_path / "c.parquet")
    (tmp_path / "d.jsonl").write_text('\n{"n": 6}\n')
    locations, source = RowLocations(), DataSource(path=str(tmp_path / "*"))
    for _ in range(2):
        assert locations.find(source, [6, 1, 3, 5]) == [
            f"{tmp_path}/d.jsonl, line 2",
            f"{tmp_path}/a.jsonl, line 3",
            f"{tmp_path}/b.json, row 1, counted from 0",
            f"{tmp_path}/c.parquet, row 1, counted from 0",
        ]


def test_a_row_of_a_list_is_located_in_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 0}\n\n{"n": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"n": 2}\n')
    source = DataSource(paths=(f"{tmp_path}/b*", f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"))
    assert RowLocations().find(source, [0, 2, 3]) == [
        f"{tmp_path}/b.jsonl, line 1",
        f"{tmp_path}/a.jsonl, line 3",
        f"{tmp_path}/b.jsonl, line 1",
    ]


def test_rows_of_files_that_are_gone_have_numbers_of_the_source(tmp_path: Path) -> None:
    source = DataSource(path=str(tmp_path / "*.jsonl"))
    assert RowLocations().find(source, [2]) == [f"{tmp_path}/*.jsonl, row 2, counted from 0"]


def test_the_home_of_nobody_is_left_as_it_is() -> None:
    found = RowLocations().find(DataSource.model_construct(path="~nobody-at-all/rows.jsonl"), [2])
    assert found == ["~nobody-at-all/rows.jsonl, row 2, counted from 0"]


def test_a_file_that_is_elsewhere_and_other_data_have_numbers(tmp_path: Path) -> None:
    gone, locations = tmp_path / "gone.jsonl", RowLocations()
    found = locations.find(DataSource(path=str(gone)), [3])
    assert found == [f"{gone}, row 3, counted from 0"]
    hub = DataSource(hugging_face="openai/gsm8k", split="test")
    assert locations.find(hub, [3]) == ["openai/gsm8k, split test, row 3, counted from 0"]


def test_a_row_that_a_file_does_not_have_keeps_its_number(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n{}\n")
    found = RowLocations().find(DataSource(path=str(file)), [7, 1])
    assert found == [f"{file}, row 7, counted from 0", f"{file}, line 2"]


@given(
    lines=st.lists(st.sampled_from(["", "  ", '{"a": 1}', '{"ä": "日本"}', "{}\r"]), max_size=40),
    asked=st.lists(st.lists(st.integers(0, 45), max_size=4), max_size=6),
)
def test_lines_are_those_of_a_count_from_the_start(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], asked: list[list[int]]
) -> None:
    """Whatever was asked before, and wherever marks are."""
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    file.write_bytes("\n".join(lines).encode())
    filled = [number for number, line in enumerate(lines, start=1) if line.strip()]
    with patch.object(row_location, "MARK_ROWS", 3):
        index = LineIndex(file)
        for rows in asked:
            assert index.find(rows) == {row: filled[row] for row in rows if row < len(filled)}


def test_what_has_been_read_of_a_file_is_not_read_again(tmp_path: Path) -> None:
    """After the first row of a large file the others cost some of its lines each, not all before
    them: its beginning is gone."""
    file, num_rows = tmp_path / "rows.jsonl", 5 * row_location.MARK_ROWS
    text = "".join(f'{{"n": {number}}}\n' for number in range(num_rows))
    file.write_text(text)
    index = LineIndex(file)
    assert index.find([num_rows - 1]) == {num_rows - 1: num_rows}
    begin = text.index(f'{{"n": {4 * row_location.MARK_ROWS}}}')
    file.write_text("\x00" * begin + text[begin:])
    row = 4 * row_location.MARK_ROWS + 7
    assert index.find([row]) == {row: row + 1}
