"""Digests of all that the numbers of a job depend on."""

from __future__ import annotations

import json
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rlhf_api.changes import manifest_digest
from rlhf_api.plan import Plan
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.journal.folder import PassSettings
from rlhf_runtime.python_path import PythonPath

# Libraries that compute.
LIBRARIES = ("megatron-core", "numpy", "rlhf-operator", "torch", "transformers", "vllm")
# Files of the user's code: in a folder, and in its packages. A home folder may have any depth.
CODE_PATTERNS = ("*.py", "*/*.py")


def settings_of(spec: RLHFJobSpec, plan: Plan, python_path: PythonPath) -> PassSettings:
    """Return digests of the manifest, the plan, the user's code and versions.

    Two jobs with equal ones compute equal numbers, if their data and models are equal.

    Args:
        spec: of the job.
        plan: of the job.
        python_path: the user's code and its packages.
    """
    code = code_digest(python_path)
    versions = {name: _version(name) for name in LIBRARIES}
    parts = [manifest_digest(spec), plan.model_dump(mode="json"), versions, code]
    return PassSettings(_digest(json.dumps(parts).encode()), code)


def code_digest(python_path: PythonPath) -> str:
    """Return a digest of the code's Python files, in its folders and in the packages there, and of
    the packages that were installed for it."""
    contents = []
    for folder in map(Path, python_path.code):
        for pattern in CODE_PATTERNS:
            for file in sorted(folder.glob(pattern)):
                contents.append([str(file.relative_to(folder)), _digest(_content(file))])
    if python_path.packages is not None:
        contents.append(["", python_path.packages.digest])
    return _digest(json.dumps(contents).encode())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # no code that this job can import
        return b""


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
