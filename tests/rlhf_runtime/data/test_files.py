from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from rlhf_api.errors import SeveralErrors
from rlhf_api.spec.data import DataSpec
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.errors import DataNotFound, DataUnreadable, EmptyDataset
from rlhf_runtime.data.files import has_large_first_row, read_file
from rlhf_runtime.data.row_names import RowNames
from rlhf_runtime.data.rows import find_sources, read_rows
from rlhf_runtime.data.source_setting import SourceSetting, Split

from ...unprivileged import permissions_hold

ROWS = [{"prompt": "a", "count": 1}, {"prompt": "b", "count": None}]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path) -> list[Any]:
    return read_all(path=str(path))


def read_all(names: RowNames | None = None, **source: Any) -> list[Any]:
    data = DataSource.model_validate(source)
    return list(read_rows(data, SourceSetting(Split.TRAIN), 0, names))


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


@pytest.mark.parametrize(
    ("name", "text"),
    [("rows.jsonl", "\n".join(map(json.dumps, ROWS))), ("rows.json", json.dumps(ROWS))],
)
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8-sig")
    assert read(file) == ROWS
    is_list = name == "rows.json"
    assert has_large_first_row(str(file), "data.train.path", 40) == is_list


def test_parquet_files_are_read(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert read(tmp_path / "rows.parquet") == ROWS


def test_columns_have_the_values_that_were_written(tmp_path: Path) -> None:
    text = pyarrow.string()
    columns = {
        "narrow": pyarrow.array([0.1, None], pyarrow.float32()),
        "map": pyarrow.array([[("truth", "2")], []], pyarrow.map_(text, text)),
        "nested": pyarrow.array([{"truth": 2}, None]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
    first, second = read(tmp_path / "rows.parquet")
    assert first == {"narrow": 0.1, "map": {"truth": "2"}, "nested": {"truth": 2}}
    assert second == {"narrow": None, "map": {}, "nested": None}


def test_values_that_python_does_not_have_are_named_with_their_file(tmp_path: Path) -> None:
    column = pyarrow.array([10**18], pyarrow.timestamp("us"))
    pyarrow.parquet.write_table(pyarrow.table({"time": column}), tmp_path / "rows.parquet")
    with pytest.raises(DataUnreadable, match="not a readable parquet file: got .*rows.parquet"):
        read(tmp_path / "rows.parquet")


def test_jsonl_is_read_as_it_is_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", '{"prompt": "a"}\nbroken\n')
    assert next(read_file(file, "data.train.path")) == {"prompt": "a"}


def test_a_row_group_is_not_read_for_its_first_row(tmp_path: Path) -> None:
    """Writers make row groups as large as the whole file; this one has two megabytes in a batch."""
    rows = [{"prompt": os.urandom(1 << 10).hex()} for _ in range(16 << 10)]
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, use_dictionary=False)
    before = pyarrow.total_allocated_bytes()
    reading = read_file(file, "data.train.path")
    assert next(reading) == rows[0]
    held = pyarrow.total_allocated_bytes() - before
    assert [rows[0], *reading] == rows
    assert held < file.stat().st_size / 4


def test_max_rows_takes_the_first_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, ROWS)) + "\nbroken\n")
    source = DataSource(path=str(file), max_rows=2)
    assert list(read_rows(source, SourceSetting(Split.TRAIN), seed=0)) == ROWS


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"data\.train\.path.*nowhere\.jsonl") as caught:
        read(tmp_path / "nowhere.jsonl")
    assert (caught.value.reason, int(caught.value.exit_code)) == ("DataNotFound", 3)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="a folder"):
        read(tmp_path)


def test_a_pattern_that_nothing_matches_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(
        DataNotFound,
        match=r"data\.train\.path matches no file: got .*/x-\*\.jsonl \(nothing there\)",
    ) as caught:
        read(tmp_path / "x-*.jsonl")
    assert caught.value.location == ("spec", "data", "train", "path")


def test_a_pattern_that_matches_folders_only_says_so(tmp_path: Path) -> None:
    (tmp_path / "x-1").mkdir()
    with pytest.raises(DataNotFound, match="nothing there but folders"):
        read(tmp_path / "x-*")
    (tmp_path / "x-2.parquet").mkdir()
    with pytest.raises(DataNotFound, match=r"is not a file: got .*/x-2\.parquet \(a folder\)"):
        read(tmp_path / "x-*")


def test_a_pattern_may_cross_folders(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("z.jsonl", "in/b.jsonl", "in/deep/a.jsonl"):
        write(tmp_path / name, json.dumps({"prompt": name}))
    rows = read(tmp_path / "**" / "*.jsonl")
    assert [row["prompt"] for row in rows] == ["in/b.jsonl", "in/deep/a.jsonl", "z.jsonl"]


def test_a_file_of_another_kind_among_those_that_match_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "{}")
    write(tmp_path / "b.csv", "a,b")
    with pytest.raises(DataUnreadable, match=r"got b\.csv"):
        read(tmp_path / "*")


def test_a_file_with_a_pattern_as_its_name_is_one_file(tmp_path: Path) -> None:
    write(tmp_path / "rows1.jsonl", '{"prompt": "no"}')
    file = write(tmp_path / "rows[1].jsonl", '{"prompt": "yes"}')
    assert read(file) == [{"prompt": "yes"}]


def test_an_empty_file_of_several_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "{}")
    write(tmp_path / "b.jsonl", "")
    with pytest.raises(EmptyDataset, match=r"got .*/b\.jsonl with 0 bytes"):
        read(tmp_path / "*.jsonl")


def test_a_large_list_of_several_files_is_read_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"prompt": "a"}\n' * 10)
    assert not has_large_first_row(str(tmp_path / "*"), "data.train.path", 20)
    write(tmp_path / "b.json", '[{"prompt": "a"}, {"prompt": "b"}]')
    assert has_large_first_row(str(tmp_path / "*"), "data.train.path", 20)


def write_parts(folder: Path) -> list[str]:
    """Two lines of b, both files that match a pattern, two rows of a dataset, and b once more."""
    write(folder / "b.jsonl", '{"n": 0}\n{"n": 1}\n')
    (folder / "more").mkdir()
    write(folder / "more" / "y.json", '[{"n": 3}]')
    pyarrow.parquet.write_table(pyarrow.table({"n": [2]}), folder / "more" / "x.parquet")
    datasets.Dataset.from_dict({"n": [4, 5]}).save_to_disk(folder / "saved")
    return [str(folder / name) for name in ("b.jsonl", "more/*", "saved", "b.jsonl")]


def test_files_patterns_and_folders_of_a_list_are_read_in_its_order(tmp_path: Path) -> None:
    paths, names = write_parts(tmp_path), RowNames()
    rows = read_all(names, paths=paths)
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4, 5, 0, 1]
    assert [names.name(row) for row in range(8)] == [
        f"row 0 of {tmp_path}/b.jsonl",
        f"row 1 of {tmp_path}/b.jsonl",
        f"row 0 of {tmp_path}/more/x.parquet",
        f"row 0 of {tmp_path}/more/y.json",
        f"row 0 of {tmp_path}/saved",
        f"row 1 of {tmp_path}/saved",
        f"row 0 of {tmp_path}/b.jsonl",
        f"row 1 of {tmp_path}/b.jsonl",
    ]
    assert [row["n"] for row in read_all(paths=paths[::-1], maxRows=4)] == [0, 1, 4, 5]
    assert [row["n"] for row in read_all(paths=paths[2:3])] == [4, 5]


@pytest.mark.parametrize(
    ("name", "error", "what"),
    [
        ("gone.jsonl", DataNotFound, "is not a file"),
        ("gone-*", DataNotFound, "matches no file"),
        ("rows.csv", DataUnreadable, "has an unknown kind"),
        ("empty.jsonl", EmptyDataset, "is an empty file"),
        ("saved", DataUnreadable, "is no readable dataset"),
    ],
)
def test_an_entry_of_a_list_is_named_by_its_number(
    tmp_path: Path, name: str, error: type[Exception], what: str
) -> None:
    paths = write_parts(tmp_path)
    write(tmp_path / "rows.csv", "a,b")
    write(tmp_path / "empty.jsonl", "")
    (tmp_path / "saved" / "state.json").write_text("[")
    with pytest.raises(error, match=rf"^data\.train\.paths\[1\] {what}: got "):
        read_all(paths=[paths[0], str(tmp_path / name)])


def test_a_list_with_errors_in_several_entries_names_all(tmp_path: Path) -> None:
    paths = [write_parts(tmp_path)[0], "/no/a.jsonl", "/no/b.jsonl"]
    data = DataSpec.model_validate({"train": {"paths": paths}})
    with pytest.raises(SeveralErrors) as caught:
        find_sources(data)
    assert [error.location for error in caught.value.errors] == [
        ("spec", "data", "train", "paths", index) for index in (1, 2)
    ]


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


def test_all_broken_lines_are_named_at_once(tmp_path: Path) -> None:
    lines = ['{"prompt": "a"}', "{", "", '{"prompt": "b"}', "x", "[[", "1e", "-", "?", "}"]
    with pytest.raises(DataUnreadable, match=r"line 2: .*also 5, 6, 7, 8, 9 and 1 more\)"):
        read(write(tmp_path / "rows.jsonl", "\n".join(lines)))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", ["[1,", '{"a": 1', '{"a": ' + "9" * 5000, DEEP])
def test_broken_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataUnreadable, match="not valid JSON"):
        read(write(tmp_path / "rows.json", text))


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_of_more_digits_than_python_converts_is_its_text(
    tmp_path: Path, form: str, sign: str
) -> None:
    text = '{"prompt": "a", "answer": DIGITS, "others": [7, DIGITS]}'
    digits = sign + "9" * 5000
    rows = read(write(tmp_path / "rows.json", form.format(text.replace("DIGITS", digits))))
    assert rows == [{"prompt": "a", "answer": digits, "others": [7, digits]}]


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataUnreadable, match="parquet"):
        read(write(tmp_path / "rows.parquet", "PAR1 but no more"))


def test_a_parquet_file_that_is_damaged_further_on_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, file, use_dictionary=False)
    content = bytearray(file.read_bytes())
    content[4:40] = bytes(36)
    file.write_bytes(content)
    with pytest.raises(DataUnreadable, match=r"rows\.parquet"):
        read(file)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_what_the_system_says_is_told_with_the_setting(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, "[]")
    file.chmod(0)
    says = rf"data\.train\.path cannot be read: got .*{name} \(.*Permission denied"
    with permissions_hold(), pytest.raises(DataUnreadable, match=says):
        read(file)


def test_a_folder_that_may_not_be_entered_is_told(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0)
    with permissions_hold(), pytest.raises(DataUnreadable, match="Permission denied"):
        read(tmp_path / "theirs" / "rows.jsonl")


def test_the_home_of_nobody_is_nowhere() -> None:
    with pytest.raises(DataNotFound, match=r"got ~nobody-at-all/rows\.jsonl \(nothing there\)"):
        read(Path("~nobody-at-all/rows.jsonl"))


@pytest.mark.parametrize(
    ("name", "text", "exceeds"),
    [
        ("rows.json", '[{"prompt": "a"}, {"prompt": "b"}]', True),
        ("rows.jsonl", '\n [{"prompt": "a"}, {"prompt": "b"}]', True),
        ("rows.json", "[1, 2, 3]", False),
        ("rows.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\n', False),
        ("rows.jsonl", '\n\n{"prompt": "a"}\n{"prompt": "b"}\n', False),
        ("rows.json", '{"data": [{"prompt": "a"}, {"prompt": "b"}]}', True),
        ("rows.parquet", "[" * 100, False),
    ],
    ids=["list", "list after lines", "small list", "lines", "blank lines", "object", "parquet"],
)
def test_a_list_and_a_line_are_read_as_a_whole(
    tmp_path: Path, name: str, text: str, exceeds: bool
) -> None:
    file = write(tmp_path / name, text)
    assert has_large_first_row(str(file), "data.train.path", 20) is exceeds


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes('{"prompt": "é"}'.encode("latin-1"))
    with pytest.raises(DataUnreadable, match="UTF-8"):
        read(tmp_path / "rows.jsonl")
