"""Resolve requirements to the packages that the environment lacks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_cli.packages.lock import LockedPackage, PackageLock, is_satisfied, this_python
from rlhf_cli.packages.pip import REQUIREMENTS, run_pip
from rlhf_runtime.errors import RequirementsFailed
from rlhf_runtime.hooks import Hook, noop

REPORT, CONSTRAINTS = "report.json", "constraints.txt"


def installed_versions() -> dict[str, str]:
    """Return the versions of all installed packages, by canonical name."""
    versions: dict[str, str] = {}
    for distribution in distributions():
        name: str | None = distribution.metadata["Name"]
        if name is None:  # the rest of a package that was removed by hand
            continue
        try:
            Version(distribution.version)
        except InvalidVersion:
            continue
        # The first one is what Python imports.
        versions.setdefault(canonicalize_name(name), distribution.version)
    return versions


def resolve(
    requirements: Sequence[str], installed: Mapping[str, str], keep_alive: Hook = noop
) -> PackageLock:
    """Ask the index for the packages that the environment lacks for requirements.

    Args:
        requirements: of the manifest.
        installed: versions in the environment, by canonical name; none is replaced.
        keep_alive: called while pip runs; an exception ends it.

    Raises:
        ManifestError: a requirement needs another version of an installed package.
        PackageIndexUnreachable: the index does not answer.
        RequirementsFailed: pip cannot resolve them.
    """
    _require_no_conflict(requirements, installed)
    missing = [text for text in requirements if _is_missing(Requirement(text), installed)]
    packages = _missing_packages(missing, installed, keep_alive) if missing else []
    return PackageLock(
        requirements=tuple(requirements), python=this_python(), packages=tuple(packages)
    )


def _require_no_conflict(requirements: Sequence[str], installed: Mapping[str, str]) -> None:
    problems = []
    for index, text in enumerate(requirements):
        requirement = Requirement(text)
        version = installed.get(canonicalize_name(requirement.name))
        if version is not None and not is_satisfied(requirement, installed):
            problems.append(
                Problem(
                    (*REQUIREMENTS, index),
                    f"the environment has another version of {requirement.name}, which stays",
                    got=text,
                    allowed=f"{requirement.name}=={version}",
                    do="allow that version, or choose an image with another one",
                )
            )
    if problems:
        raise ManifestError(problems)


def _is_missing(requirement: Requirement, installed: Mapping[str, str]) -> bool:
    # An extra may need further packages.
    return bool(requirement.extras) or not is_satisfied(requirement, installed)


def _missing_packages(
    requirements: Sequence[str], installed: Mapping[str, str], keep_alive: Hook
) -> list[LockedPackage]:
    with tempfile.TemporaryDirectory(prefix="rlhf-pip-") as name:
        folder = Path(name)
        constraints = folder / CONSTRAINTS
        lines = [f"{package}=={version}" for package, version in sorted(installed.items())]
        constraints.write_text("\n".join(lines) + "\n")
        report = folder / REPORT
        # Nothing is installed: the report lists what would be.
        options = ["install", "--dry-run", "--report", str(report), "-c", str(constraints)]
        run_pip([*options, *requirements], folder, keep_alive)
        entries = json.loads(report.read_text())["install"]
    return sorted(map(_locked, entries), key=lambda package: package.name)


def _locked(entry: Mapping[str, Any]) -> LockedPackage:
    """Return the package of an entry of pip's report."""
    metadata = entry["metadata"]
    archive = entry["download_info"].get("archive_info", {})
    hashes = [f"{algorithm}:{value}" for algorithm, value in archive.get("hashes", {}).items()]
    if not hashes and archive.get("hash"):  # pip before 23.1
        hashes = [archive["hash"].replace("=", ":", 1)]
    if not hashes:
        raise RequirementsFailed(
            f"the index gives no hash of a package: got {metadata['name']} {metadata['version']}; "
            "use an index that does, or an image that has the package"
        ).at(*REQUIREMENTS)
    return LockedPackage(
        name=canonicalize_name(metadata["name"]),
        version=metadata["version"],
        hashes=tuple(sorted(hashes)),
    )
