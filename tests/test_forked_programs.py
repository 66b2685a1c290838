"""Copies of a process are like processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from .forked_programs import Program, start_copy
from .waiting import wait_until

SECONDS = 60.0
MODULE = __name__
CONSTANT = 1.0


def show() -> int:
    """Print what a process has of its own; the program that is copied in these tests."""
    own = (sys.argv, os.getcwd(), dict(os.environ), CONSTANT, os.getsid(0) == os.getpid())
    print(json.dumps([*own, sys.stdin.read()]))
    return 3


def fail() -> int:
    """Raise an error."""
    raise ValueError("a fault")


def last() -> int:
    """Stay until a signal comes."""
    print("here", flush=True)
    while True:
        time.sleep(SECONDS)


def program(function: str, folder: Path, **changes: object) -> Program:
    settings = {
        "function": f"{MODULE}:{function}",
        "arguments": [str(folder / "bin" / "name"), "one", "two words"],
        "folder": str(folder),
        "log": str(folder / "log"),
        "environment": {"ONLY": "this"},
    }
    return Program(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_copy_has_what_it_is_given(tmp_path: Path) -> None:
    constants = {f"{MODULE}:CONSTANT": 2.0}
    copy = start_copy(
        program("show", tmp_path, constants=constants, has_own_session=True), (MODULE,)
    )
    assert copy.wait(SECONDS) == 3 == copy.poll()
    arguments = [str(tmp_path / "bin" / "name"), "one", "two words"]
    shown = json.loads((tmp_path / "log").read_text())
    assert shown == [arguments, str(tmp_path), {"ONLY": "this"}, 2.0, True, ""]


def test_copies_do_not_change_each_other(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert start_copy(program("show", folder), (MODULE,)).wait(SECONDS) == 3
        *_, constant, leads_session, _ = json.loads((folder / "log").read_text())
        assert (constant, leads_session) == (1.0, False)


def test_an_error_is_shown_and_the_exit_code_says_so(tmp_path: Path) -> None:
    copy = start_copy(program("fail", tmp_path), (MODULE,))
    assert copy.wait(SECONDS) == 1
    assert "ValueError: a fault" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_a_copy(tmp_path: Path, number: signal.Signals) -> None:
    copy = start_copy(program("last", tmp_path), (MODULE,))
    log = tmp_path / "log"
    wait_until(lambda: log.exists() and "here" in log.read_text(), SECONDS, "a start")
    assert copy.poll() is None
    copy.send_signal(number)
    assert copy.wait(SECONDS) == -number


def test_a_copy_starts_processes(tmp_path: Path) -> None:
    (tmp_path / "spawning.py").write_text(
        "import multiprocessing\n"
        "def main():\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print, args=('hello',))\n"
        "    child.start()\n"
        "    child.join()\n"
        "    return child.exitcode\n"
    )
    there = replace(
        program("", tmp_path), function="spawning:main", arguments=[str(tmp_path / "program")]
    )
    copy = start_copy(there, (MODULE,))
    assert (copy.wait(SECONDS), (tmp_path / "log").read_text()) == (0, "hello\n")
