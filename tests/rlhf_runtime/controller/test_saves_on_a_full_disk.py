"""Checkpoints on a disk that has no space for another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rlhf_api.report import SavingProblem
from rlhf_api.spec.checkpoint import CheckpointSpec
from rlhf_runtime.checkpoint.record import SavedFile, new_digest
from rlhf_runtime.checkpoint.store import CheckpointDamaged, CheckpointStore
from rlhf_runtime.controller.saves import CheckpointManager
from rlhf_runtime.disk_space import with_cause
from rlhf_runtime.errors import CheckpointFailed, NoSpace

from ...small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]
MIB = 1 << 20
SIZE = 4 * MIB


@ray.remote(num_cpus=0)
def fail(error: Exception) -> None:
    raise error


class Told:
    """A recorder that remembers."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.events: list[tuple[int, str]] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    notice_once = notice

    def saved(self, step: int, address: str) -> None:
        self.events.append((step, "saved"))

    def not_saved(self, step: int, problem: SavingProblem, message: str) -> None:
        assert f"step {step} could not be written" in message
        self.events.append((step, problem.value))


class Disk:
    """A small disk with a manager of checkpoints, whose one rank writes 4 MiB."""

    def __init__(self, disk: SmallDisk) -> None:
        self.disk = disk
        self.folder = disk.seen / "checkpoints"
        self.rank = SimpleNamespace(
            begin_save=SimpleNamespace(remote=self._write),
            finish_save=SimpleNamespace(remote=lambda step: self._written),
        )
        self.late_rank = SimpleNamespace(
            begin_save=SimpleNamespace(remote=lambda address, step: (address, step))
        )
        self.told = Told()
        self.saves = self.manager()

    def manager(self, **settings: Any) -> CheckpointManager:
        spec = CheckpointSpec.model_validate({"keepBest": "None", **settings})
        self.told = Told()
        store = CheckpointStore(str(self.folder))
        self.saves = CheckpointManager(store, spec, {}, self.told)  # type: ignore[arg-type]
        self.saves.newest()
        self.saves.claim()
        return self.saves

    def save(self, *steps: int) -> None:
        for step in steps:
            self.saves.begin([self.rank], step)
            self.saves.commit(self.saves.finish([self.rank], step))

    def whole(self) -> list[int]:
        """Steps whose checkpoints another process could resume from."""
        store = CheckpointStore(str(self.folder))
        steps = []
        for step in store.steps():
            try:
                steps.append(store.read(step).record.step)
            except CheckpointDamaged:
                continue
        return steps

    def _write(self, address: str, step: int) -> Any:
        contents = bytes([step]) * SIZE
        digest = new_digest()
        digest.update(contents)
        path = Path(address, "part.distcp")
        try:
            path.write_bytes(contents)
        except OSError as error:
            self._written = fail.remote(with_cause(CheckpointFailed(str(error)), error))
        else:
            self._written = ray.put({"part.distcp": SavedFile(SIZE, digest.hexdigest())})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Space for two checkpoints and no more."""
    with small_disk(tmp_path / "disk", mebibytes=10) as small:
        yield Disk(small)


def test_the_oldest_goes_where_another_one_stays(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = disk.manager(keepLast=2)
    remove = saves.store.remove

    def killed_in_between(step: int) -> None:
        """Whatever happens during the removal, a job can resume."""
        assert set(disk.whole()) - {step}
        remove(step)

    monkeypatch.setattr(saves.store, "remove", killed_in_between)
    disk.save(1, 2, 3, 4)
    assert disk.told.events == [(step, "saved") for step in (1, 2, 3, 4)]
    assert disk.whole() == [4, 3]
    assert [text.partition(" was deleted")[0] for text in disk.told.notices] == [
        "the checkpoint of step 1",
        "the checkpoint of step 2",
    ]


@pytest.mark.parametrize("is_written", [True, False])
def test_one_that_is_written_meanwhile_counts(disk: Disk, is_written: bool) -> None:
    """Its checkpoint is not complete when that of the next step begins."""
    disk.disk.resize(14)
    disk.manager(keepLast=3)
    disk.save(1, 2)
    if is_written:
        disk.saves.begin([disk.rank], 3)
        third = disk.saves.finish([disk.rank], 3)
    else:
        ((address, _),) = disk.saves.begin([disk.late_rank], 3)
    disk.saves.begin([disk.rank], 4)
    assert disk.whole() == [2], "that of step 1 made way for that of step 4"
    fourth = disk.saves.finish([disk.rank], 4)
    if not is_written:
        disk.rank.begin_save.remote(address, 3)
        third = disk.saves.finish([disk.rank], 3)
    disk.saves.commit(third)
    disk.saves.commit(fourth)
    assert disk.whole() == [4, 3, 2]


def test_the_only_one_stays_and_the_run_goes_on_by_itself_when_there_is_space(disk: Disk) -> None:
    disk.disk.resize(6)
    disk.manager(keepLast=1)
    disk.save(1, 2, 3)
    assert disk.told.events == [(1, "saved"), (2, "NoSpace"), (3, "NoSpace")]
    assert disk.whole() == [1] and not disk.saves.should_retry()
    assert [path.name for path in disk.folder.glob("*step*")] == ["step-00000001"]
    disk.disk.resize(7)
    assert not disk.saves.should_retry(), "another one would not fit"
    disk.disk.resize(10)
    assert disk.saves.should_retry()
    disk.save(4)
    assert disk.whole() == [4] and not disk.saves.should_retry()


def test_a_failure_for_lack_of_space_makes_some_and_is_tried_once_more(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota does not show in the free space."""
    saves = disk.manager(keepLast=3, onError="Fail")
    disk.save(1, 2)
    monkeypatch.setattr(saves.store, "free_bytes", lambda: 1 << 40)
    disk.save(3)
    assert disk.told.events[-1] == (3, "NoSpace") and disk.whole() == [2]
    assert saves.should_retry()
    disk.save(4)
    assert disk.told.events[-1] == (4, "saved") and not saves.should_retry()
    disk.disk.fill()
    disk.save(5)
    disk.disk.fill()
    with pytest.raises(NoSpace, match="step 6 could not be written.*older checkpoints are"):
        disk.save(6)
    assert disk.whole() == [4] and not saves.should_retry()


def test_nothing_goes_for_a_newest_one_that_is_damaged(disk: Disk) -> None:
    disk.manager(keepLast=2)
    disk.save(1, 2)
    (disk.folder / "step-00000002" / "part.distcp").write_bytes(b"")
    disk.disk.fill()
    disk.save(3)
    assert disk.told.events[-1] == (3, "NoSpace") and disk.whole() == [1]


def test_what_nobody_can_use_goes_first(disk: Disk) -> None:
    """A killed run leaves the part of a checkpoint, and a damaged one is of no use."""
    disk.save(1, 2)
    (disk.folder / "step-00000002" / "part.distcp").write_bytes(bytes(SIZE))
    disk.manager(keepLast=2)
    assert disk.saves.newest_step == 1
    disk.save(2)
    assert disk.told.events == [(2, "saved")] and disk.whole() == [2, 1]
    disk.manager(keepLast=1)
    disk.save(3)
    left = Path(disk.saves.store.begin(4), "part.distcp")
    left.write_bytes(bytes(SIZE))
    disk.manager(keepLast=1)
    disk.save(4)
    assert disk.told.events == [(4, "saved")] and not left.exists() and disk.whole() == [4]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_old_ones_on_the_same_disk_make_way_for_the_model(disk: Disk, is_elsewhere: bool) -> None:
    storage = {"storage": {"uri": f"file://{disk.folder}"}} if is_elsewhere else {}
    disk.manager(keepLast=2, **storage)
    disk.save(1, 2)
    assert disk.saves.make_space_for_model() is not is_elsewhere
    assert disk.whole() == ([2, 1] if is_elsewhere else [2])
    assert not disk.saves.make_space_for_model(), "the newest one stays"


def test_another_error_is_no_lack_of_space(disk: Disk) -> None:
    disk.save(1)
    disk.rank.finish_save.remote = lambda step: fail.remote(CheckpointFailed("no route to host"))
    disk.save(2)
    assert disk.told.events[-1] == (2, "WriteFailed")
    disk.disk.resize(100)
    assert not disk.saves.should_retry(), "the next regular one is soon enough"
