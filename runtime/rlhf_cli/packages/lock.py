"""PackageLock: the exact packages of a run, so that it resumes with the same ones."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rlhf_api.spec.cluster import CodeSpec
from rlhf_runtime.durable_files import write_durably
from rlhf_runtime.python_path import Packages
from rlhf_runtime.telemetry.errors import CannotRecord

LOCK_FILE = "requirements.json"
"""Name of the file, in a run's folder and in that of the installed packages."""


# Lines for pip are made of these: a damaged file must not add options to them.
_Hash = Annotated[str, Field(pattern="^[a-z0-9]+:[0-9a-f]+$")]


def _require_version(version: str) -> str:
    Version(version)
    return version


class LockedPackage(BaseModel):
    """A package of a lock."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]
    """Canonical name."""
    version: Annotated[str, AfterValidator(_require_version)]
    hashes: Annotated[tuple[_Hash, ...], Field(min_length=1)]
    """ALGORITHM:DIGEST of the files that may be installed."""

    @property
    def pin(self) -> str:
        """NAME==VERSION."""
        return f"{self.name}=={self.version}"

    @property
    def line(self) -> str:
        """The package as a line of a file with hashes, for pip."""
        return " ".join([self.pin, *(f"--hash={value}" for value in self.hashes)])


def this_python() -> str:
    """Return the kind of Python and machine that packages are installed for."""
    return f"{sys.implementation.cache_tag}-{platform.machine()}"


class PackageLock(BaseModel):
    """The packages of requirements. Fields of a later release are ignored."""

    model_config = ConfigDict(frozen=True)

    requirements: tuple[str, ...]
    """Requirements of the manifest."""
    python: str
    """Python and machine, as `this_python` returns them."""
    packages: tuple[LockedPackage, ...]
    """Packages that the environment lacks for them, with dependencies; sorted by name."""

    @property
    def digest(self) -> str:
        """Digest of the packages, for the name of their folder."""
        parts = [self.python, [package.line for package in self.packages]]
        return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def is_of(self, requirements: tuple[str, ...], installed: Mapping[str, str]) -> bool:
        """Return True if the lock is one of these requirements, for this Python.

        Args:
            requirements: of the manifest.
            installed: versions in the environment, by canonical name. They win over the lock's.
        """
        if self.requirements != requirements or self.python != this_python():
            return False
        versions = {package.name: package.version for package in self.packages}
        # Another image may have other packages than the one that the lock was made in.
        versions.update(installed)
        return all(is_satisfied(Requirement(text), versions) for text in requirements)


def is_satisfied(requirement: Requirement, versions: Mapping[str, str]) -> bool:
    """Return True if a requirement has its package, or is not one of this environment.

    Args:
        versions: by canonical name.
    """
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    version = versions.get(canonicalize_name(requirement.name))
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def read_lock(folder: Path) -> PackageLock | None:
    """Return the lock in a folder. None: it has none that can be read."""
    try:
        return PackageLock.model_validate_json((folder / LOCK_FILE).read_bytes())
    except (OSError, ValueError):
        # The packages are resolved anew, and the run notes that its code has changed.
        return None


def write_lock(folder: Path, lock: PackageLock) -> None:
    """Write a lock into a folder, and wait until the disk has it.

    Raises:
        OSError: it cannot be written.
    """
    write_durably(folder / LOCK_FILE, lock.model_dump_json(indent=2) + "\n")


def keep_lock(run: Path, code: CodeSpec | None, packages: Packages | None) -> None:
    """Keep the lock of installed packages in a run's folder; remove one that no longer holds.

    Args:
        run: the run's folder.
        code: of the manifest.
        packages: of the job. None: it has none.

    Raises:
        CannotRecord: the run's folder cannot be written, or that of the packages has no lock.
    """
    try:
        if packages is None or code is None:
            (run / LOCK_FILE).unlink(missing_ok=True)
            return
        lock = read_lock(Path(packages.folder))
        if lock is None:
            # Without it the run would resume with other versions, and nobody would notice now.
            raise CannotRecord(
                f"the packages of the run cannot be recorded: got no readable {LOCK_FILE} in "
                f"{packages.folder}; delete that folder, and they are installed again"
            )
        # Other requirements may have led to the same packages, which are installed once.
        write_lock(run, lock.model_copy(update={"requirements": code.requirements}))
    except OSError as error:
        raise CannotRecord(
            f"the packages of the run cannot be recorded: got {type(error).__name__}: {error} in "
            f"{run}; free space there, or correct its permissions"
        ) from error
