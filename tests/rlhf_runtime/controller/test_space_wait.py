"""Waits for space on a disk that is full."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rlhf_runtime.controller import space_wait
from rlhf_runtime.controller.space_wait import RETRY_SECONDS, SpaceWait
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.errors import ModelNotSaved, NoSpace, model_not_saved
from rlhf_runtime.hooks import noop
from rlhf_runtime.telemetry.errors import RunFolderLost
from rlhf_runtime.telemetry.run_folder import RunFolder

from ...small_disk import small_disk
from ..telemetry.conftest import a_run

FULL = model_not_saved(Path("/run"), OSError(errno.EDQUOT, "Disk quota exceeded"))


class Clock:
    """Time that passes only in sleeps; something may happen in the first one."""

    def __init__(self, first: Callable[[], object] = noop) -> None:
        self.now = 0.0
        self._first = first

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._first()
        self._first = noop


def wait_of(folder: Path, clock: Clock, seconds: float = 1000.0) -> tuple[SpaceWait, list[str]]:
    texts: list[str] = []
    wait = SpaceWait(
        *(seconds, folder, StopRequest(), texts.append),
        report_alive=lambda: None,
        clock=lambda: clock.now,
        sleep=clock.sleep,
    )
    return wait, texts


def failing(times: int, error: Exception = FULL) -> Callable[[], None]:
    left = iter(range(times))

    def write() -> None:
        for _ in left:
            raise error

    return write


def test_a_record_is_written_when_the_disk_has_space_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        folder = RunFolder(disk.seen)
        folder.write_manifest("first")
        disk.fill()
        clock = Clock(disk.empty)
        wait, texts = wait_of(disk.seen, clock)
        alive: list[float] = []
        wait.report_alive = lambda: alive.append(clock.now)
        wait.until_written(lambda: folder.write_manifest("second " * 1000))
        assert folder.read_manifest() == "second " * 1000
    assert clock.now == 1.0 and alive == [1.0], "it looks every second"
    begin, end = texts
    assert begin.startswith("waiting up to 1000 s for space: CannotRecord:") and end == ""
    assert "No space left on device" in begin


def test_what_fits_is_written_without_a_word(tmp_path: Path) -> None:
    wait, texts = wait_of(tmp_path, Clock())
    wait.until_written(noop)
    assert texts == []


def test_quotas_are_tried_now_and_then_as_free_space_does_not_show_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_wait, "free_bytes", lambda _: 1 << 30)
    clock = Clock()
    wait_of(tmp_path, clock)[0].until_written(failing(2))
    assert clock.now == 2 * RETRY_SECONDS


@pytest.mark.parametrize("seconds", [0.0, 400.0])
def test_a_wait_ends_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(space_wait, "free_bytes", lambda _: 0)
    clock = Clock()
    wait, _ = wait_of(tmp_path, clock, seconds)
    with pytest.raises(NoSpace, match="spaceDeadlineSeconds.*ModelNotSaved: .*quota exceeded"):
        wait.until_written(failing(9))
    assert clock.now == seconds


def test_a_request_to_stop_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_wait, "free_bytes", lambda _: 0)
    clock = Clock(lambda: setattr(wait.stop, "requested", True))
    wait, _ = wait_of(tmp_path, clock)
    with pytest.raises(NoSpace, match="a stop was requested"):
        wait.until_written(failing(9))
    assert clock.now == 1.0


@pytest.mark.parametrize("error", [ModelNotSaved("other"), OSError(errno.EIO, "broken")])
def test_other_errors_are_not_waited_for(tmp_path: Path, error: Exception) -> None:
    clock = Clock()
    with pytest.raises(type(error)) as caught:
        wait_of(tmp_path, clock)[0].until_written(failing(1, error))
    assert caught.value is error and clock.now == 0.0


def test_a_folder_that_is_deleted_meanwhile_is_missed_at_once(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        folder = RunFolder(disk.seen / "run")
        folder.append(a_run(folder.path))
        disk.fill()
        clock = Clock(lambda: shutil.rmtree(folder.path))
        with pytest.raises(RunFolderLost):
            wait_of(folder.path, clock)[0].until_written(partial(folder.write_manifest, "x" * 9999))
    assert clock.now == 1.0
