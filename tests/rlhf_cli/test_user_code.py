"""Where a job's own Python is found, on a machine and in a cluster."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors import ManifestError
from rlhf_cli.packages.installation import PackageStore
from rlhf_cli.user_code import local_user_code, mounted_code, user_code
from rlhf_runtime.python_path import NO_CODE, PythonPath

from ..rlhf_runtime.controller.jobs import make_job
from .packages.fake_pip import FakePip

CODE: list[dict[str, Any]] = [
    {"configMap": {"name": "verifiers"}},
    {"git": {"url": "https://example.com/a.git", "revision": "main"}},
]


def no_packages() -> PackageStore:
    raise AssertionError("a job without requirements needs no packages")


def test_a_machine_reads_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with user_code(make_job(code={"local": str(tmp_path / "mine")})) as path:
        assert path.code[0] == str(tmp_path / "mine") == sys.path[0]
    assert path.code[0] not in sys.path


@pytest.mark.parametrize(("make", "kind"), [(None, "nothing there"), (Path.touch, "a file")])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, make: Any, kind: str) -> None:
    if make is not None:
        make(tmp_path / "mine")
    message = rf"^spec\.code\.local: not a folder: got {tmp_path}/mine \({kind}\)"
    with (
        pytest.raises(ManifestError, match=message),
        user_code(make_job(code={"local": str(tmp_path / "mine")})),
    ):
        pass


@pytest.mark.parametrize("code", CODE)
def test_code_of_a_cluster_is_not_here(code: dict[str, Any]) -> None:
    assert local_user_code(make_job(code=code)) is None


@pytest.mark.parametrize("code", CODE)
def test_a_cluster_mounts_it(tmp_path: Path, code: dict[str, Any]) -> None:
    with mounted_code(make_job(code=code), tmp_path, no_packages) as path:
        assert path == PythonPath((str(tmp_path),)) and sys.path[0] == str(tmp_path)
    assert str(tmp_path) not in sys.path


def test_a_job_without_code_needs_no_folder(tmp_path: Path) -> None:
    with mounted_code(make_job(), tmp_path, no_packages) as path:
        assert path == NO_CODE


def test_a_folder_of_the_users_machine_is_refused_with_a_remedy(tmp_path: Path) -> None:
    job = make_job(code={"local": "mine"})
    with (
        pytest.raises(ManifestError, match=r"spec\.code\.local.*cannot read.*configMap"),
        mounted_code(job, tmp_path, no_packages),
    ):
        pass


def test_modules_of_one_folder_are_not_those_of_another(tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "of_the_folder.py").write_text(f"NAME = {name!r}\n")
        with user_code(make_job(code={"local": str(tmp_path / name)})):
            found.append(import_module("of_the_folder").NAME)
    assert found == ["one", "other"] and "of_the_folder" not in sys.modules


def test_packages_are_searched_last_and_each_job_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pip = FakePip().used_by(monkeypatch)
    before, lines = list(sys.path), []
    for version in ("1.0", "2.0"):
        pip.newest = version
        with user_code(make_job(code={"requirements": ["tiny-words"]})) as path:
            assert path.packages is not None and sys.path[-1] == path.packages.folder
            assert path.folders == (os.getcwd(), path.packages.folder)
            lines.append(import_module("tiny_words").LINE)
    assert lines == [f"tiny-words=={version} --hash=sha256:0\n" for version in ("1.0", "2.0")]
    assert sys.path == before
    del sys.modules["tiny_words"]


def test_requirements_alone_are_code_of_any_machine() -> None:
    assert local_user_code(make_job(code={"requirements": ["tiny-words"]})) is not None
