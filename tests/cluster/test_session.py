"""A test session's own clusters: refused with a reason, stopped when the session was killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from . import session
from .kubectl import Kubectl
from .queues import API, require_kueue
from .session import own_cluster, stop_abandoned


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where clusters of test processes are."""
    monkeypatch.setattr(session, "OWN", tmp_path / "clusters")
    return tmp_path / "clusters"


@pytest.mark.parametrize(
    ("in_ci", "outcome"),
    [
        ("", pytest.skip.Exception),
        ("false", pytest.skip.Exception),
        ("true", pytest.fail.Exception),
    ],
)
def test_without_binaries_tests_are_skipped_and_fail_in_ci(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_ci: str,
    outcome: type[BaseException],
) -> None:
    monkeypatch.setenv("CI", in_ci)
    nothing = {"DEVCLUSTER_CACHE": str(tmp_path / "cache"), "KUBEBUILDER_ASSETS": ""}
    with (
        pytest.raises(outcome, match="run `tools/devcluster/build.sh etcd"),
        own_cluster("none", **nothing),
    ):
        raise AssertionError("a cluster has started")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("in_ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_where_only_kueue_is_not_built_its_tests_are_skipped_and_fail_in_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", in_ci)
    monkeypatch.setenv("DEVCLUSTER_CACHE", str(tmp_path / "cache"))
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho ray.io/v1\n")
    program.chmod(0o755)
    with pytest.raises(outcome, match="run `tools/devcluster/build.sh kueue` once"):
        require_kueue(Kubectl(program, tmp_path / "kubeconfig", tmp_path))
    program.write_text(f"#!/bin/sh\necho {API}\n")
    require_kueue(Kubectl(program, tmp_path / "kubeconfig", tmp_path))


def test_what_a_killed_session_left_is_stopped(folder: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    part = subprocess.Popen(["sleep", "1000"])
    for owner in (ended.pid, os.getpid()):
        state = folder / str(owner) / "session"
        (state / "pids").mkdir(parents=True)
        (state / "arguments").write_text("--fake-nodes 1\n")
    started = Path("/proc", str(part.pid), "stat").read_text().rpartition(") ")[2].split()[19]
    (folder / str(ended.pid) / "session" / "pids" / "etcd").write_text(f"{part.pid} {started}\n")

    stop_abandoned()

    assert part.wait(timeout=10) < 0
    assert [left.name for left in folder.iterdir()] == [str(os.getpid())]
