"""images/check_content.py notices what an image must not contain."""

from __future__ import annotations

import runpy
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "images" / "check_content.py"


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    """The script's functions."""
    return runpy.run_path(str(SCRIPT))


def test_files_with_anothers_rights_are_noticed(check: dict[str, Any], tmp_path: Path) -> None:
    for name, mode in {"plain": 0o755, "user": 0o4755, "group": 0o2755}.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o2755)  # only new files of it inherit the group
    (tmp_path / "link").symlink_to(tmp_path / "user")
    said = check["privileged_files"](tmp_path)
    assert {Path(line.split()[0]).name for line in said} == {"user", "group"}


def test_compilers_are_noticed(check: dict[str, Any], tmp_path: Path) -> None:
    assert list(check["compilers"](str(tmp_path))) == []
    (tmp_path / "gcc").touch()
    (tmp_path / "gcc").chmod(0o755)
    (said,) = check["compilers"](str(tmp_path))
    assert said.startswith(f"{tmp_path}/gcc is a compiler")


def test_packages_are_those_of_the_list(check: dict[str, Any], tmp_path: Path) -> None:
    installed = {each.metadata["Name"]: each.version for each in distributions()}
    installed.pop("rlhf-operator", None)
    assert list(check["wrong_packages"](tmp_path)) == [f"{tmp_path} has no list of its packages"]
    names = sorted(installed)
    folder = tmp_path / "packages"
    folder.mkdir()
    pins = [f"{name}=={installed[name]}" for name in names]
    (folder / "one.txt").write_text("\n".join([*pins[1:], f"{names[0]}==0.0.0a0 ; x == 'y'"]))
    (folder / "two.txt").write_text("# a comment\nnever-there==1\n")
    said = list(check["wrong_packages"](tmp_path))
    assert len(said) == 2
    assert any("never-there: got none, allowed 1;" in line for line in said)
    assert any("allowed 0.0.0a0;" in line for line in said)


def test_the_runtimes_image_needs_a_pip(check: dict[str, Any], tmp_path: Path) -> None:
    base = getattr(sys, "_base_executable", sys.executable)
    assert list(check["missing_pip"](tmp_path, "/bin/false")) == [], "the operator's installs none"
    (tmp_path / "packages").mkdir()
    assert list(check["missing_pip"](tmp_path, base)) == []
    (said,) = check["missing_pip"](tmp_path, "/bin/false")
    assert said.startswith("/bin/false has no pip")


def test_the_user_and_its_rights_are_checked(check: dict[str, Any], tmp_path: Path) -> None:
    assert list(check["wrong_user"](1000)) == []
    (said,) = check["wrong_user"](0)
    assert said.startswith("the user is 0, allowed 1000")
    absent = tmp_path / "absent"
    assert list(check["writable_folders"]((absent,))) == []
    (said,) = check["writable_folders"]((tmp_path, absent))
    assert "can be written" in said
