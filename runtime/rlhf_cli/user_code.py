"""Where a job's own Python is found while a command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_api import RLHFJob
from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem


@contextmanager
def user_code(job: RLHFJob, folder: Path) -> Iterator[tuple[str, ...]]:
    """Put `spec.code.local` and the current folder on the Python path; gives both.

    Args:
        job: the manifest.
        folder: where its file is; `spec.code.local` is relative to it.
    """
    code = job.spec.code
    local = [] if code is None or code.local is None else [str((folder / code.local).resolve())]
    with _on_python_path((*local, os.getcwd())) as wanted:
        yield wanted


@contextmanager
def mounted_code(job: RLHFJob, folder: Path) -> Iterator[tuple[str, ...]]:
    """Put the folder at which a cluster mounts `spec.code` on the Python path; gives it.

    Args:
        job: the manifest.
        folder: where its ConfigMap or Git repository is, in this pod and in the workers'.

    Raises:
        ManifestError: the code is in a folder that no pod can see.
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
    with _on_python_path(() if code is None else (str(folder),)) as wanted:
        yield wanted


@contextmanager
def _on_python_path(wanted: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    entries = [entry for entry in wanted if entry not in sys.path]
    sys.path[:0] = entries
    try:
        yield wanted
    finally:
        for entry in entries:
            sys.path.remove(entry)
