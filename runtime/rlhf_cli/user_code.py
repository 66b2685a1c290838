"""Put a job's own Python on the import path while a command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.spec.job import RLHFJob
from rlhf_runtime.python_path import Packages, PythonPath

if TYPE_CHECKING:
    from rlhf_cli.packages.installation import PackageStore


@contextmanager
def user_code(job: RLHFJob, run: Path | None = None) -> Iterator[PythonPath]:
    """Put `spec.code.local`, the current folder and packages on the Python path; yield them.

    Args:
        job: the manifest, with absolute paths.
        run: folder of the run that may resume with its packages. None: none does.

    Raises:
        ManifestError: `spec.code.local` is not a folder, or packages do not fit this environment.
        RequirementsFailed, PackageIndexUnreachable: `spec.code.requirements` cannot be installed.
    """
    code = job.spec.code
    local = [] if code is None or code.local is None else [_require_folder(code.local)]
    with _on_python_path(PythonPath((*local, os.getcwd()), _packages_here(job, run))) as path:
        yield path


def local_user_code(job: RLHFJob) -> AbstractContextManager[PythonPath] | None:
    """Return `user_code`; None if the code is in a ConfigMap or a Git repository."""
    code = job.spec.code
    is_here = code is None or (code.config_map is None and code.git is None)
    return user_code(job) if is_here else None


def _packages_here(job: RLHFJob, run: Path | None) -> Packages | None:
    """Return the packages of a job, installed for this user."""
    if job.spec.code is None or not job.spec.code.requirements:
        return None
    # Only jobs with requirements need its imports.
    from rlhf_cli.packages.installation import PackageStore, cache_folder

    return PackageStore(cache_folder(), run).packages_for(job.spec.code.requirements)


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
def mounted_code(
    job: RLHFJob, folder: Path, store: Callable[[], PackageStore]
) -> Iterator[PythonPath]:
    """Put the folder at which a cluster mounts `spec.code`, and packages, on the Python path; yield
    them.

    Args:
        job: the manifest.
        folder: the mount point of its ConfigMap or Git repository, in this pod and in the workers'.
        store: returns the place for packages, which all pods see, if the job needs any.

    Raises:
        ManifestError: the code is in a folder that pods cannot read, or packages do not fit this
            environment.
        RequirementsFailed, PackageIndexUnreachable: `spec.code.requirements` cannot be installed.
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
    requirements = () if code is None else code.requirements
    packages = store().packages_for(requirements) if requirements else None
    with _on_python_path(PythonPath(() if code is None else (str(folder),), packages)) as path:
        yield path


@contextmanager
def _on_python_path(python_path: PythonPath) -> Iterator[PythonPath]:
    if python_path.packages is not None:
        _unload_other_sets(Path(python_path.packages.folder))
    before = set(sys.modules)
    # A folder that is on the path already stays there at the end.
    entries = python_path.add_to(sys.path)
    try:
        yield python_path
    finally:
        for entry in entries:
            sys.path.remove(entry)
        # Modules are unloaded, because another job's folder may have modules of the same names.
        code = [entry for entry in entries if entry in python_path.code]
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in _modules_in(code):
                del sys.modules[name]


def _unload_other_sets(folder: Path) -> None:
    """Unload modules of other sets of packages than that of a folder."""
    # Not at the end of a context: compiled modules cannot be loaded twice, and most commands need
    # one set only.
    for name, module in list(sys.modules.items()):
        parents = Path(getattr(module, "__file__", None) or "").parents
        if folder.parent in parents and folder not in parents:
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
