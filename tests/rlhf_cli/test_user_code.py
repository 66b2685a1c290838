"""Where a job's own Python is found, on a machine and in a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors import ManifestError
from rlhf_cli.user_code import mounted_code, user_code

from ..rlhf_runtime.controller.jobs import make_job

CODE: list[dict[str, Any]] = [
    {"configMap": {"name": "verifiers"}},
    {"git": {"url": "https://example.com/a.git", "revision": "main"}},
]


def test_a_machine_reads_a_folder_beside_the_manifest(tmp_path: Path) -> None:
    with user_code(make_job(code={"local": "mine"}), tmp_path) as path:
        assert path[0] == str(tmp_path / "mine") == sys.path[0]
    assert path[0] not in sys.path


@pytest.mark.parametrize("code", CODE)
def test_a_cluster_mounts_it(tmp_path: Path, code: dict[str, Any]) -> None:
    with mounted_code(make_job(code=code), tmp_path) as path:
        assert path == (str(tmp_path),) and sys.path[0] == str(tmp_path)
    assert str(tmp_path) not in sys.path


def test_a_job_without_code_needs_no_folder(tmp_path: Path) -> None:
    with mounted_code(make_job(), tmp_path) as path:
        assert path == ()


def test_a_folder_of_the_users_machine_is_refused_with_a_remedy(tmp_path: Path) -> None:
    job = make_job(code={"local": "mine"})
    with (
        pytest.raises(ManifestError, match=r"spec\.code\.local.*cannot read.*configMap"),
        mounted_code(job, tmp_path),
    ):
        pass
