"""Check what an image contains; its own Python runs this in a container of it.

Prints one line for each violation, and exits with 1 if there is one. Only the standard library.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

USER_ID = 1000
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "make", "ld")
RUNTIME_LISTS = "packages"
"""Folder of the lists of the runtime's image."""
LISTS = ("packages.txt", f"{RUNTIME_LISTS}/*.txt")
"""Lists of pinned packages of an image, below its environment."""
OWN_PACKAGE = "rlhf-operator"
UNREAD = ("/proc", "/sys", "/dev", "/run/secrets")


def privileged_files(root: Path) -> Iterator[str]:
    """Yield files that run with another user's or group's rights."""
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if str(Path(folder, name)) not in UNREAD]
        for path in (Path(folder, name) for name in files):
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                yield f"{path} is setuid or setgid: remove the bit in the Dockerfile"


def compilers(search: str) -> Iterator[str]:
    """Yield compilers on the search path."""
    for name in COMPILERS:
        if (path := shutil.which(name, path=search)) is not None:
            yield f"{path} is a compiler: install it in an earlier stage only"


def wrong_packages(environment: Path) -> Iterator[str]:
    """Yield differences between the installed packages and the image's list of pins."""
    lists = [file for pattern in LISTS for file in sorted(environment.glob(pattern))]
    if not lists:
        yield f"{environment} has no list of its packages"
        return
    pinned = dict(pin for file in lists for pin in _pins(file.read_text(encoding="utf-8")))
    installed = {_plain(package.metadata["Name"]): package.version for package in distributions()}
    installed.pop(OWN_PACKAGE, None)
    for name in sorted(pinned.keys() | installed.keys()):
        if pinned.get(name) != installed.get(name):
            got, allowed = installed.get(name, "none"), pinned.get(name, "none")
            yield f"package {name}: got {got}, allowed {allowed}; install by the pinned list"


def _pins(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, version = line.partition("#")[0].partition(";")[0].strip().partition("==")
        if version:
            yield _plain(name), version


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def missing_pip(environment: Path, base: str) -> Iterator[str]:
    """Yield an error if the runtime's image cannot install what jobs require.

    Args:
        environment: of the image.
        base: the Python that it was made of; environments of uv have no pip of their own.
    """
    if not (environment / RUNTIME_LISTS).is_dir():
        return
    done = subprocess.run([base, "-P", "-c", "import pip"], capture_output=True)
    if done.returncode:
        yield f"{base} has no pip, which installs code.requirements: choose a BASE that has it"


def wrong_user(user_id: int) -> Iterator[str]:
    """Yield an error if the container's user is not the image's."""
    if user_id != USER_ID:
        yield f"the user is {user_id}, allowed {USER_ID}: set USER in the Dockerfile"


def writable_folders(folders: tuple[Path, ...]) -> Iterator[str]:
    """Yield folders of programs that the user may change."""
    for folder in folders:
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield f"{folder} can be written by the user: leave it to root"


def main(has_compiler: bool) -> int:
    """Print all violations; returns the exit code.

    Args:
        has_compiler: true if kernels are compiled on nodes, as in the image for GPUs.
    """
    environment = Path(sys.prefix)
    found = [
        *privileged_files(Path("/")),
        *(() if has_compiler else compilers(os.environ.get("PATH", ""))),
        *wrong_packages(environment),
        *missing_pip(environment, getattr(sys, "_base_executable", sys.executable)),
        *wrong_user(os.getuid()),
        *writable_folders((environment, Path("/usr"), Path("/etc"))),
    ]
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main("--compiler" in sys.argv[1:]))
