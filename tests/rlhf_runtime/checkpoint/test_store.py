"""The store on a local folder, and on object stores, which cannot rename."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from rlhf_runtime.checkpoint.record import RECORD_FILE, CheckpointRecord, SavedFile
from rlhf_runtime.checkpoint.store import OWNER_FILE, CheckpointDamaged, CheckpointStore
from rlhf_runtime.controller.retention import steps_to_keep
from rlhf_runtime.errors import StorageFailed, StorageInUse

from ...object_store import s3_bucket

SPEC = {"schedule": {"steps": 9}}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as address:
        yield address


@pytest.fixture(params=["path", "file", "memory", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where nothing is yet."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}{tmp_path}"
    prefix = {"path": "", "file": "file://", "memory": "memory://"}[request.param]
    return f"{prefix}{tmp_path}/job"


@pytest.fixture
def store(address: str) -> CheckpointStore:
    return CheckpointStore(address)


def write(store: CheckpointStore, step: int, commit: bool = True, **metrics: float) -> str:
    """A checkpoint of two files; returns where they are."""
    address = store.begin(step)
    files = {}
    for rank in (0, 1):
        name, contents = f"__{rank}_0.distcp", bytes([step, rank]) * 1000
        with fsspec.open(f"{address}/{name}", "wb") as file:
            file.write(contents)
        files[name] = SavedFile(2000, hashlib.blake2b(contents, digest_size=16).hexdigest())
    if not commit:
        return address
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
        with pytest.raises(CheckpointDamaged, match="never finished"):
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
    fs, path = fsspec.core.url_to_fs(store.begin(3))
    assert not fs.exists(f"{path}/__7_0.distcp")


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
    with pytest.raises(CheckpointDamaged, match=says):
        store.read(4)


def test_a_removed_checkpoint_is_gone(store: CheckpointStore) -> None:
    write(store, 1)
    write(store, 2)
    store.remove(1)
    assert store.steps() == [2]


def test_who_claims_last_has_it(address: str) -> None:
    first, second = CheckpointStore(address), CheckpointStore(address)
    first.claim()
    write(first, 1)
    first.begin(2)
    second.claim()
    with pytest.raises(StorageInUse, match="claimed by process"):
        first.commit(CheckpointRecord(2, 1, SPEC))
    with pytest.raises(StorageInUse, match="stop one of the two"):
        first.begin(3)
    with pytest.raises(StorageInUse):
        first.remove(1)
    assert second.steps()[-1] == 1 and second.record(2) is None
    write(second, 2)
    assert second.read(2).record.step == 2


def test_a_predecessor_that_still_writes_harms_nothing(address: str) -> None:
    first, second = CheckpointStore(address), CheckpointStore(address)
    first.claim()
    late = first.begin(5)
    second.claim()
    write(second, 5)
    with fsspec.open(f"{late}/__0_0.distcp", "wb") as file:
        file.write(b"late")
    assert second.read(5).record.step == 5
    first.abandon(5)
    assert second.steps() == [5] and second.read(5).record.step == 5


def test_a_place_is_probed_without_leaving_anything(address: str) -> None:
    store = CheckpointStore(address)
    store.check_writable()
    fs, path = fsspec.core.url_to_fs(address)
    assert not fs.exists(path) or fs.ls(path) == []


def test_a_bucket_that_does_not_exist_is_not_made(bucket: str) -> None:
    store = CheckpointStore(f"{bucket}-with-a-typo/job")
    with pytest.raises(StorageFailed) as raised:
        store.check_writable()
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    assert store.steps() == []


def test_a_claim_that_was_deleted_or_damaged_stops_nobody(address: str) -> None:
    store = CheckpointStore(address)
    store.claim()
    for text in (b"{", b"[]"):
        damage(address, OWNER_FILE, text)
        write(store, 1)
    damage(address, OWNER_FILE, None)
    write(store, 2)
    store.claim()
    fs, path = fsspec.core.url_to_fs(f"{address}/{OWNER_FILE}")
    assert json.loads(fs.cat_file(path)).keys() == {"run", "host", "process"}


def test_a_record_keeps_its_evaluations_and_those_of_earlier_releases_have_one() -> None:
    evaluations = ((0, {"evaluation/reward_mean": 0.1}), (5, {"evaluation/reward_mean": 1 / 3}))
    record = CheckpointRecord(5, 1, SPEC, evaluations=evaluations)
    assert CheckpointRecord.from_text(record.to_text()) == record
    earlier = {key: value for key, value in json.loads(record.to_text()).items()}
    del earlier["evaluations"]
    assert CheckpointRecord.from_text(json.dumps(earlier)).evaluations == ()
    earlier["metrics"] = {"evaluation/reward_mean": 0.5}
    assert CheckpointRecord.from_text(json.dumps(earlier)).evaluations == ((5, earlier["metrics"]),)
    with pytest.raises(ValueError):
        CheckpointRecord.from_text(json.dumps(earlier | {"evaluations": [[1, {}, 2]]}))


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
    assert steps_to_keep(records, keep_last, best_by) == kept


def test_of_equally_good_ones_the_newest_is_kept() -> None:
    records = [record_of(step, reward=0.5) for step in (1, 2, 3)]
    assert steps_to_keep(records, 1, "reward") == {3}


def test_a_disk_that_is_full_is_writable_once_it_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(str(tmp_path))

    def fail(path: str, value: bytes) -> None:
        raise OSError(number, "of the disk")

    monkeypatch.setattr(store._fs, "pipe_file", fail)
    number = errno.ENOSPC
    store.check_writable()
    number = errno.EROFS
    with pytest.raises(StorageFailed, match="of the disk"):
        store.check_writable()


def test_only_disks_say_their_free_space(store: CheckpointStore, address: str) -> None:
    write(store, 1)
    free = store.free_bytes()
    assert (free is not None and free > 0) is ("memory" not in address and "s3" not in address)


def test_files_that_lack_or_are_cut_are_missed(store: CheckpointStore, address: str) -> None:
    folder = write(store, 1)
    record = store.read(1).record
    assert store.has_files(record) and not store.has_files(dataclasses.replace(record, step=2))
    damage(folder, "__1_0.distcp", b"")
    assert not store.has_files(record)
