"""Digests of all that the numbers of a job depend on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rlhf_api.changes import manifest_digest
from rlhf_api.plan import Plan
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.journal.folder import PassSettings

# Libraries that compute.
LIBRARIES = ("megatron-core", "numpy", "rlhf-operator", "torch", "transformers", "vllm")
# Files of the user's code: in a folder, and in its packages. A home folder may have any depth.
CODE_PATTERNS = ("*.py", "*/*.py")


def settings_of(spec: RLHFJobSpec, plan: Plan, python_path: Sequence[str]) -> PassSettings:
    """Return digests of the manifest, the plan, the user's code and versions.

    Two jobs with equal ones compute equal numbers, if their data and models are equal.

    Args:
        spec: of the job.
        plan: of the job.
        python_path: folders of the user's code.
    """
    code = code_digest(python_path)
    versions = {name: _version(name) for name in LIBRARIES}
    parts = [manifest_digest(spec), plan.model_dump(mode="json"), versions, code]
    return PassSettings(_digest(json.dumps(parts).encode()), code)


def code_digest(folders: Sequence[str]) -> str:
    """Return a digest of the Python files in folders, and in the packages there."""
    contents = []
    for folder in map(Path, folders):
        for pattern in CODE_PATTERNS:
            for file in sorted(folder.glob(pattern)):
                contents.append([str(file.relative_to(folder)), _digest(_content(file))])
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
