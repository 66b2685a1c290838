"""The store on a local folder, and on a file system that cannot rename."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from rlhf_runtime.checkpoint.record import RECORD_FILE, CheckpointRecord
from rlhf_runtime.checkpoint.store import CheckpointStore, describe_files, kept_steps

SPEC = {"schedule": {"steps": 9}}


@pytest.fixture(params=["local", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    """Under a path, under a file:// address, and where renaming is not used."""
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
        fsspec.filesystem("memory").pseudo_dirs[:] = [""]
        return CheckpointStore("memory://bucket/job")
    address = str(tmp_path / "job")
    return CheckpointStore(address if request.param == "local" else f"file://{address}")


def write(store: CheckpointStore, step: int, commit: bool = True, **metrics: float) -> str:
    """A checkpoint of two files; returns where they are."""
    address = store.begin(step)
    for rank in (0, 1):
        with fsspec.open(f"{address}/__{rank}_0.distcp", "wb") as file:
            file.write(bytes([step, rank]) * 1000)
    if not commit:
        return address
    files = describe_files(address, "__0_") | describe_files(address, "__1_")
    return store.commit(CheckpointRecord(step, 2, SPEC, metrics, files)).address


def damage(address: str, name: str, contents: bytes | None) -> None:
    fs, path = fsspec.core.url_to_fs(f"{address}/{name}")
    if contents is None:
        fs.rm(path)
    else:
        with fs.open(path, "wb") as file:
            file.write(contents)


def test_what_was_committed_is_found_again(store: CheckpointStore) -> None:
    assert store.steps() == []
    write(store, 2)
    write(store, 10, reward=0.5)
    assert store.steps() == [10, 2]
    found = store.read(10)
    assert (found.record.step, found.record.world_size) == (10, 2)
    assert (found.record.spec, found.record.metrics) == (SPEC, {"reward": 0.5})
    with fsspec.open(f"{found.address}/__1_0.distcp", "rb") as file:
        assert file.read() == bytes([10, 1]) * 1000


def test_what_was_only_begun_does_not_count(store: CheckpointStore) -> None:
    write(store, 1)
    address = write(store, 2, commit=False)
    if 2 in store.steps():
        with pytest.raises(ValueError, match="never finished"):
            store.read(2)
    assert store.record(2) is None
    store.abandon(2)
    fs, path = fsspec.core.url_to_fs(address)
    assert not fs.exists(path)
    assert store.steps() == [1]


def test_beginning_again_leaves_nothing_of_the_first_attempt(store: CheckpointStore) -> None:
    address = write(store, 3, commit=False)
    with fsspec.open(f"{address}/__7_0.distcp", "wb") as file:
        file.write(b"old")
    assert describe_files(store.begin(3), "__") == {}


def test_a_step_can_be_committed_again(store: CheckpointStore) -> None:
    write(store, 3, reward=0.1)
    write(store, 3, reward=0.2)
    assert store.read(3).record.metrics == {"reward": 0.2}


@pytest.mark.parametrize(
    ("name", "contents", "says"),
    [
        ("__1_0.distcp", b"\4\1" * 999, "__1_0.distcp has 1998 bytes instead of 2000"),
        ("__1_0.distcp", b"\4\2" * 1000, "__1_0.distcp has other contents"),
        ("__0_0.distcp", None, "__0_0.distcp is missing"),
        (RECORD_FILE, b'{"step": 4', "checkpoint.json is damaged"),
        (RECORD_FILE, b'{"step": 4}', "checkpoint.json is damaged"),
        (RECORD_FILE, None, "checkpoint.json is missing"),
    ],
)
def test_damage_is_named(
    store: CheckpointStore, name: str, contents: bytes | None, says: str
) -> None:
    damage(write(store, 4), name, contents)
    with pytest.raises(ValueError, match=says):
        store.read(4)


def test_a_removed_checkpoint_is_gone(store: CheckpointStore) -> None:
    write(store, 1)
    write(store, 2)
    store.remove(1)
    assert store.steps() == [2]


def record_of(step: int, **metrics: float) -> CheckpointRecord:
    return CheckpointRecord(step, 1, SPEC, metrics)


@pytest.mark.parametrize(
    ("keep_last", "best_by", "kept"),
    [(1, None, {4}), (2, None, {3, 4}), (1, "reward", {2, 4}), (9, "reward", {1, 2, 3, 4})],
)
def test_the_newest_and_the_best_are_kept(
    keep_last: int, best_by: str | None, kept: set[int]
) -> None:
    records = [record_of(1, reward=0.1), record_of(2, reward=0.9), record_of(3), record_of(4)]
    assert kept_steps(records, keep_last, best_by) == kept


def test_of_equally_good_ones_the_newest_is_kept() -> None:
    records = [record_of(step, reward=0.5) for step in (1, 2, 3)]
    assert kept_steps(records, 1, "reward") == {3}
