"""Put a job's own Python on the import path while a command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.spec.job import RLHFJob


@contextmanager
def user_code(job: RLHFJob) -> Iterator[tuple[str, ...]]:
    """Put `spec.code.local` and the current folder on the Python path; yield both.

    Args:
        job: the manifest, with absolute paths.

    Raises:
        ManifestError: `spec.code.local` is not a folder.
    """
    code = job.spec.code
    local = [] if code is None or code.local is None else [_require_folder(code.local)]
    with _on_python_path((*local, os.getcwd())) as folders:
        yield folders


def local_user_code(job: RLHFJob) -> AbstractContextManager[tuple[str, ...]] | None:
    """As `user_code`; None if the code is in a ConfigMap or a Git repository."""
    code = job.spec.code
    return user_code(job) if code is None or code.local is not None else None


def _require_folder(local: str) -> str:
    """Check that `spec.code.local` is a folder, and return it.

    Raises:
        ManifestError: it is not, or cannot be read.
    """
    path = Path(local)
    try:
        kind = "" if path.is_dir() else "a file" if path.exists() else "nothing there"
    except OSError as error:
        kind = error.strerror or str(error)
    if kind:
        raise ManifestError(
            [
                Problem(
                    ("spec", "code", "local"),
                    "not a folder",
                    got=f"{path} ({kind})",
                    allowed="the folder of your Python files, relative to the manifest's",
                    do="correct the path, or remove spec.code where all code is installed",
                )
            ]
        )
    return local


@contextmanager
def mounted_code(job: RLHFJob, folder: Path) -> Iterator[tuple[str, ...]]:
    """Put the folder at which a cluster mounts `spec.code` on the Python path; yield it.

    Args:
        job: the manifest.
        folder: the mount point of its ConfigMap or Git repository, in this pod and in the workers'.

    Raises:
        ManifestError: the code is in a folder that pods cannot read.
    """
    code = job.spec.code
    if code is not None and code.local is not None:
        raise ManifestError(
            [
                Problem(
                    ("spec", "code", "local"),
                    "a folder of your machine, which a cluster cannot read",
                    got=code.local,
                    allowed="code.configMap, code.git, or code in the image",
                    do="put the files into a ConfigMap (kubectl create configmap NAME "
                    f"--from-file={code.local}) and name it in code.configMap.name",
                )
            ]
        )
    with _on_python_path(() if code is None else (str(folder),)) as folders:
        yield folders


@contextmanager
def _on_python_path(folders: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    # A folder that is on the path already stays there at the end.
    entries = [entry for entry in folders if entry not in sys.path]
    before = set(sys.modules)
    # First, so that the user's modules win over installed ones of the same name.
    sys.path[:0] = entries
    try:
        yield folders
    finally:
        for entry in entries:
            sys.path.remove(entry)
        # Modules are unloaded, because another job's folder may have modules of the same names.
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in _modules_in(entries):
                del sys.modules[name]


def _modules_in(folders: Iterable[str]) -> set[str]:
    """Top-level modules and packages of folders."""
    return {
        entry.stem
        for folder in map(Path, folders)
        if folder.is_dir()
        for entry in folder.iterdir()
        if entry.suffix == ".py" or (entry / "__init__.py").is_file()
    }
