import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlhf_runtime.controller.run_lock import lock_folder
from rlhf_runtime.errors import FolderInUse, FolderUnusable

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join([str(ROOT / "crds"), str(ROOT / "runtime")])
HOLD = """
import subprocess, sys
from pathlib import Path
from rlhf_runtime.controller.run_lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
    print(child.pid, flush=True)
    child.wait()
"""
"""Holds a folder's lock, with a child that would outlive it, until its standard input ends."""


@contextmanager
def holder(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds the folder, and its child's id."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": PATHS},
    )
    assert process.stdout is not None
    with process:  # its end closes the standard input
        yield process, int(process.stdout.readline())


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    with (
        holder(tmp_path) as (process, _),
        pytest.raises(FolderInUse, match=f"got {tmp_path}, held by process {process.pid};"),
        lock_folder(tmp_path),
    ):
        raise AssertionError("two processes hold the folder")


def test_a_killed_process_gives_the_folder_free_though_its_child_lives(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, child):
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock_folder(tmp_path):
            os.kill(child, 0)
            assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_folder_is_free_after_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    for _ in range(2):
        with lock_folder(folder):
            assert (folder / ".lock").is_file()


def test_the_id_of_an_earlier_holder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("1234567890123")
    with lock_folder(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_run_that_raises_gives_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_folder(tmp_path):
        raise KeyError("as a step might")
    with lock_folder(tmp_path):
        pass


def test_a_refused_process_leaves_the_holders_id_in_place(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        for _ in range(2):
            with pytest.raises(FolderInUse, match=str(process.pid)), lock_folder(tmp_path):
                pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_folder_on_a_full_disk_is_locked_by_a_driver_that_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "of the disk")

    monkeypatch.setattr(os, "pwrite", fail)
    expected = FolderInUse if number == errno.ENOSPC else FolderUnusable
    with pytest.raises(expected), lock_folder(tmp_path), lock_folder(tmp_path):
        pass
