"""Files of a job's folder: listed and read in pods and at addresses, tailed, and fetched whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_cli.cluster.downloading import ASIDE, FetchItem, download
from rlhf_cli.cluster.errors import NothingToRead, OutputExists, TransferFailed
from rlhf_cli.cluster.log_printer import BLOCK_BYTES, LogFile, Tail, tail_offset
from rlhf_cli.cluster.run_files import PodFiles, RunFile, RunFiles, UriFiles, safe_path

from ...rlhf_kube.fake_kube import FakeKube
from .objects import pod

WEIGHTS = bytes(range(256)) * 1000
MODEL, LOGS = FetchItem("model"), FetchItem("logs", grows=True)


class Silent:
    """Shows nothing; remembers how much arrived."""

    def __init__(self) -> None:
        self.size = 0

    def begin(self, path: str, size: int) -> None:
        pass

    def arrived(self, size: int) -> None:
        self.size += size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder."""
    run = tmp_path / "run folder"
    for name, content in {
        "model/config.json": b"{}",
        "model/model.safetensors": WEIGHTS,
        "logs/rank-0.log": b"one\ntwo\n",
        "report.html": b"<html>",
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    return run


@pytest.fixture
def fake_pod(folder: Path) -> FakeKube:
    """A cluster with one pod, that sees the folder."""
    cluster = FakeKube()
    cluster.create(pod("reader", "team", {}))
    cluster.folders["reader"] = {"/rlhf/run": folder, "/none": folder / "none"}
    return cluster


def pod_files(cluster: FakeKube, root: str = "/rlhf/run") -> PodFiles:
    return PodFiles(cluster, "team", "reader", "ray", root)


@pytest.fixture(params=["pod", "address"])
def files(request: pytest.FixtureRequest, fake_pod: FakeKube, folder: Path) -> RunFiles:
    return pod_files(fake_pod) if request.param == "pod" else UriFiles(f"file://{folder}")


def test_files_are_listed_below_folders_and_by_name(files: RunFiles) -> None:
    found = files.list(["model", "report.html", "none"])
    assert [(file.path, file.size) for file in found] == [
        ("model/config.json", 2),
        ("model/model.safetensors", len(WEIGHTS)),
        ("report.html", 6),
    ]
    assert len(files.list(["."])) == 4
    assert files.list(["none"]) == []


def test_a_part_of_a_file_is_read(files: RunFiles) -> None:
    def read(offset: int, length: int) -> bytes:
        return b"".join(files.read("model/model.safetensors", offset, length))

    assert read(0, len(WEIGHTS)) == WEIGHTS
    assert read(255, 3) == b"\xff\x00\x01"
    assert read(len(WEIGHTS) - 1, 10) == b"\xff"
    assert b"".join(files.read("none", 0, 10)) == b""


def test_another_content_has_another_version(files: RunFiles, folder: Path) -> None:
    (before,) = files.list(["report.html"])
    os.utime(folder / "report.html", (1, 1))
    assert files.list(["report.html"])[0].version != before.version


def test_a_folder_that_is_not_there_has_no_files(fake_pod: FakeKube) -> None:
    nothing = pod_files(fake_pod, "/none")
    assert nothing.list(["logs"]) == [] and b"".join(nothing.read("x", 0, 1)) == b""


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "model/../../x", ""])
def test_paths_that_lead_out_of_the_folder_are_refused(path: str) -> None:
    with pytest.raises(TransferFailed):
        safe_path(path)


def test_an_address_that_nobody_knows_is_told() -> None:
    with pytest.raises(NothingToRead, match="checkpoint.storage.uri"):
        UriFiles("sea://bottle/x")


class Text:
    """A folder with one log in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def list(self, paths: object) -> list[RunFile]:
        return [RunFile("log", len(self.content), "")]

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        yield self.content[offset : offset + length]


@given(
    st.lists(st.sampled_from([b"", b"a", b"bb" * 9]), max_size=40),
    st.booleans(),
    st.integers(0, 50),
)
def test_the_tail_is_that_of_the_whole_text(lines: list[bytes], ends: bool, wanted: int) -> None:
    content = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    start = tail_offset(LogFile(Text(content), "log"), len(content), wanted)
    expected = content.splitlines(keepends=True)[-wanted:] if wanted else []
    assert content[start:] == b"".join(expected)


def test_the_tail_of_a_long_log_is_read_from_its_end() -> None:
    content = b"".join(b"%06d %s\n" % (line, b"x" * 90) for line in range(3 * BLOCK_BYTES // 98))
    text = Text(content)
    start = tail_offset(LogFile(text, "log"), len(content), 1000)
    assert content[start:].count(b"\n") == 1000


def test_what_is_added_is_told_once_and_a_new_log_from_its_start() -> None:
    text = Text(b"one\n")
    log, tail = LogFile(text, "log"), Tail()
    told = [tail.read_new(log)]
    for content in (b"one\n", b"one\ntwo\n", b"new\n"):
        text.content = content
        told.append(tail.read_new(log))
    assert told == [b"one\n", b"", b"two\n", b"new\n"]


def fetch(
    files: RunFiles,
    output: Path,
    *parts: FetchItem,
    pause: Callable[[float], None] = lambda _: None,
) -> list[Path]:
    return download(files, parts, output, Silent(), pause=pause)


def test_parts_arrive_whole_and_nothing_is_left_aside(files: RunFiles, tmp_path: Path) -> None:
    output = tmp_path / "out"
    places = fetch(files, output, MODEL, LOGS, FetchItem("none"))
    assert places == [output / "model", output / "logs"]
    assert (output / "model" / "model.safetensors").read_bytes() == WEIGHTS
    assert (output / "logs" / "rank-0.log").read_bytes() == b"one\ntwo\n"
    assert sorted(path.name for path in output.iterdir()) == ["logs", "model"]


def test_a_broken_connection_is_begun_where_it_broke(fake_pod: FakeKube, tmp_path: Path) -> None:
    class Breaking(PodFiles):
        def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
            if path.endswith("safetensors") and offset < 3000:
                fake_pod.breaks.append(1000)
            return super().read(path, offset, length)

    bar = Silent()
    files = Breaking(fake_pod, "team", "reader", "ray", "/rlhf/run")
    download(files, [MODEL], tmp_path / "out", bar, pause=lambda _: None)
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == WEIGHTS
    assert bar.size == len(WEIGHTS) + 2  # no byte came twice


def test_a_connection_that_brings_nothing_is_given_up(fake_pod: FakeKube, tmp_path: Path) -> None:
    class Broken(PodFiles):
        def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
            fake_pod.breaks.append(0)
            return super().read(path, offset, length)

    waits: list[float] = []
    files = Broken(fake_pod, "team", "reader", "ray", "/rlhf/run")
    with pytest.raises(TransferFailed, match=r"0 of 2 bytes of model/config.json"):
        fetch(files, tmp_path / "out", MODEL, pause=waits.append)
    assert waits == sorted(waits) and len(waits) == 7 and max(waits) == 30
    assert list((tmp_path / "out").iterdir()) == []


class Changing(UriFiles):
    """A folder in which somebody writes while it is read."""

    def __init__(self, folder: Path, path: str, content: bytes) -> None:
        super().__init__(f"file://{folder}")
        self._change = (folder / path, content)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        pieces = list(super().read(path, offset, length))
        target, content = self._change
        target.write_bytes(content)
        return chain(pieces)


def test_a_file_that_changes_on_its_way_is_refused(folder: Path, tmp_path: Path) -> None:
    changing = Changing(folder, "model/config.json", b'{"new": 1}')
    with pytest.raises(TransferFailed, match="model/config.json; try again"):
        fetch(changing, tmp_path / "out", MODEL)
    assert not (tmp_path / "out" / "model").exists()


def test_a_log_that_grows_on_its_way_is_taken_as_it_was(folder: Path, tmp_path: Path) -> None:
    growing = Changing(folder, "logs/rank-0.log", b"one\ntwo\nthree\n")
    fetch(growing, tmp_path / "out", LOGS)
    assert (tmp_path / "out" / "logs" / "rank-0.log").read_bytes() == b"one\ntwo\n"


def test_what_lies_there_is_kept_unless_it_may_go(files: RunFiles, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "model" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("x")
    with pytest.raises(OutputExists, match="--force"):
        fetch(files, tmp_path / "out", MODEL)
    assert mine.read_text() == "x"
    download(files, [MODEL], tmp_path / "out", Silent(), replace=True)
    assert not mine.exists() and (tmp_path / "out" / "model" / "config.json").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]


@pytest.mark.parametrize("replace", [False, True])
def test_what_lies_beside_it_is_kept(files: RunFiles, tmp_path: Path, replace: bool) -> None:
    kept = [tmp_path / "out" / name / "mine" for name in ("model.old", "model.replaced")]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_text("x")
    for _ in range(2 if replace else 1):
        download(files, [MODEL], tmp_path / "out", Silent(), replace=replace)
    assert [path.read_text() for path in kept] == ["x", "x"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model",
        "model.old",
        "model.replaced",
    ]


def test_what_cannot_be_replaced_is_still_there(
    files: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "out" / "model" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("x")
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.parent.name == ASIDE and path.name == "model":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(TransferFailed, match="No space left"):
        download(files, [MODEL], tmp_path / "out", Silent(), replace=True)
    assert mine.read_text() == "x"


def test_an_output_that_cannot_be_written_is_told(files: RunFiles, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(TransferFailed, match="another --output"):
        fetch(files, tmp_path / "out", MODEL)


def test_what_an_interrupted_one_left_is_removed(files: RunFiles, tmp_path: Path) -> None:
    old = tmp_path / "out" / ASIDE / "model" / "old"
    old.parent.mkdir(parents=True)
    old.write_text("x")
    fetch(files, tmp_path / "out", MODEL)
    names = sorted(path.name for path in (tmp_path / "out" / "model").iterdir())
    assert names == ["config.json", "model.safetensors"]
