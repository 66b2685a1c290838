"""Wheels of a module each, and a folder of them that stands for the index."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import pytest

from rlhf_cli.packages.lock import LockedPackage, PackageLock, this_python

WORDS = """
WORD = "1="

def digits(text):
    return sum(c.isdigit() for c in text[:8]) / 8
"""


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    needs: Sequence[str] = (),
    code: str = "",
    others: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel whose module has the package's name and VERSION; returns the file.

    Args:
        needs: requirements of the package.
        code: more of its module.
        others: further files by their names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}.py": f"VERSION = {version!r}\n{code}",
        **(others or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (*files.items(), (f"{info}/RECORD", record)):
            # A fixed time: equal wheels have equal hashes.
            archive.writestr(zipfile.ZipInfo(file), text)
    return path


class Index:
    """A folder of wheels, which pip uses instead of an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def variables(self) -> dict[str, str]:
        """pip's settings for it, as environment variables."""
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder)}

    def used_by(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)
        return self

    def add(self, name: str, version: str, needs: Sequence[str] = (), **more: Any) -> Path:
        return write_wheel(self.folder, name, version, needs, **more)

    def add_words(self, version: str, others: Mapping[str, str] | None = None) -> Path:
        """Add the package that tests/runs/user_code/packaged.py needs."""
        return self.add("tiny_words", version, code=WORDS, others=others)


def hash_of(wheel: Path) -> str:
    return f"sha256:{sha256(wheel.read_bytes()).hexdigest()}"


def lock_of(requirements: Sequence[str], *wheels: tuple[str, str, Path]) -> PackageLock:
    """Return the lock that resolving makes of wheels.

    Args:
        wheels: name, version and file.
    """
    packages = [
        LockedPackage(name=name, version=version, hashes=(hash_of(wheel),))
        for name, version, wheel in wheels
    ]
    return PackageLock(
        requirements=tuple(requirements), python=this_python(), packages=tuple(packages)
    )


def lock_of_words(version: str, wheel: Path) -> PackageLock:
    """Return the lock of the package tiny-words."""
    return lock_of(["tiny-words"], ("tiny-words", version, wheel))
