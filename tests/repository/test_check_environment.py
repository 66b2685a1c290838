"""The check before the set-up names everything that a machine lacks, and what to do."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType

import pytest

from .tracked_files import ROOT

SCRIPT = ROOT / "tools" / "check_environment.py"
Usage = namedtuple("Usage", ["total", "used", "free"])


@pytest.fixture
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_environment", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_machine_that_runs_the_tests_lacks_nothing() -> None:
    command = [sys.executable, str(SCRIPT), "--installed"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_machine_is_told_everything_at_once(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**30, 2**30, 0))
    monkeypatch.setattr(check, "_available_memory", lambda: 2**30)
    found = list(check.problems(installed=False))
    for start in ("disk: got 0.0 GiB", "memory: got 1.0 GiB", "shared memory: got 0 MiB"):
        assert any(problem.startswith(start) for problem in found), found


def test_packages_that_are_there_need_no_space(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 2**40, 2 * 2**30))
    assert any("disk" in problem for problem in check.problems(installed=False))
    assert not any("disk" in problem for problem in check.problems(installed=True))


def test_another_machine_or_python_is_refused(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    monkeypatch.setattr(check.platform, "machine", lambda: "aarch64")
    python, machine = check.problems(installed=True)
    assert "allowed 3.11 and 3.12" in python and "allowed Linux on x86_64" in machine


def test_a_missing_library_is_named_with_its_package(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LIBRARIES", {"libnone.so.0": "apt-get install libnone"})
    (problem,) = check._libraries()
    assert problem == "library: libnone.so.0 is missing, and vLLM needs it; apt-get install libnone"


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", sys.maxsize), (str(3 * 2**30), 3 * 2**30 - 900 + 200)]
)
def test_a_containers_limit_counts(
    check: ModuleType, tmp_path: Path, limit: str, expected: int
) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 700\ninactive_file 200\n")
    assert check._container_memory(tmp_path) == expected


def test_a_cache_on_another_disk_needs_space_of_its_own(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", "/dev/shm/rlhf-no-such-cache")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 2**40, 2**30))
    assert any("UV_CACHE_DIR" in problem for problem in check._cache())
