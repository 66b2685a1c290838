"""What a process may use of its machine."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest

from rlhf_runtime.workers.process import usable_cores, without_collector

CORES = 8


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(CORES)))


def cgroup(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000\n", 8), ("400000 100000\n", 4), ("50000 100000\n", 1), ("9900000 100000\n", 8)],
)
def test_a_containers_limit_counts(tmp_path: Path, quota: str, cores: int) -> None:
    assert usable_cores(cgroup(tmp_path, cpu_dot_max=quota)) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1\n", 8), ("200000\n", 2)])
def test_older_kernels_say_it_elsewhere(tmp_path: Path, quota: str, cores: int) -> None:
    files = {"cpu__cpu_dot_cfs_quota_us": quota, "cpu__cpu_dot_cfs_period_us": "100000\n"}
    assert usable_cores(cgroup(tmp_path, **files)) == cores


def test_without_a_limit_there_are_all_cores(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == CORES


class Knot:
    """An object that only the collector frees: it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_libraries_cannot_collect_at_a_processs_end_and_can_afterwards() -> None:
    with without_collector():
        knot = weakref.ref(Knot())
        gc.unfreeze()
        assert gc.collect() == 0 and knot() is not None
    gc.collect()
    assert knot() is None
