"""Install the packages of a lock once, for all processes that see a folder of sets.

A set is a folder named by the digest of its lock. It is complete: it was renamed once all of it was
on the disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from rlhf_cli.packages.lock import LOCK_FILE, PackageLock, read_lock, write_lock
from rlhf_cli.packages.pip import POLL_SECONDS, run_pip
from rlhf_cli.packages.resolve import installed_versions, resolve
from rlhf_runtime.disk_space import with_cause
from rlhf_runtime.durable_files import sync_path
from rlhf_runtime.errors import FolderUnusable
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.python_path import Packages

UNFINISHED = ".unfinished-"
"""Begin of the name of a set that is being installed."""
SETS_LOCK = ".lock"


def cache_folder() -> Path:
    """Return the folder of sets on a machine of the user.

    Raises:
        FolderUnusable: the user has no home folder, and XDG_CACHE_HOME is not set.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # Its specification ignores relative paths: they would name another folder for each command.
    if not root.is_absolute():
        try:
            root = Path.home() / ".cache"
        except RuntimeError as error:
            raise FolderUnusable(
                "packages of code.requirements need a cache folder: got no home folder, and no "
                "absolute path in XDG_CACHE_HOME; set XDG_CACHE_HOME to a folder that you can write"
            ) from error
    return root / "rlhf" / "packages"


def _print(text: str) -> None:
    typer.echo(text, err=True)


@dataclass(frozen=True)
class PackageStore:
    """Folder and settings of installations."""

    folder: Path
    """Folder of the sets."""
    run: Path | None = None
    """Folder of the run that may resume with its lock. None: requirements are resolved anew."""
    notify: Callable[[str], None] = _print
    """Shows a line to the user."""
    keep_alive: Hook = noop
    """Called while pip runs; an exception ends it."""

    def packages_for(self, requirements: tuple[str, ...]) -> Packages:
        """Return the packages for requirements, which this installs where they are missing.

        Args:
            requirements: of the manifest, at least one.

        Raises:
            ManifestError: one needs another version of an installed package.
            RequirementsFailed: pip cannot resolve or install them.
            PackageIndexUnreachable: the index does not answer.
            FolderUnusable: the folder of sets, or that of temporary files, cannot be written.
        """
        installed = installed_versions()
        lock = None if self.run is None else self._lock_of_run(self.run)
        if lock is None or not lock.is_of(requirements, installed):
            self.notify(f"resolving code.requirements: {', '.join(requirements)}")
            with _temporary_files():
                lock = resolve(requirements, installed, self.keep_alive)
        folder = self.install(lock)
        names = tuple(package.pin for package in lock.packages)
        return Packages(str(folder), lock.digest, names)

    def install(self, lock: PackageLock) -> Path:
        """Return the folder of a lock's set, which this installs unless it is there.

        Raises:
            RequirementsFailed: pip cannot install it.
            PackageIndexUnreachable: the index does not answer.
            FolderUnusable: the folder of sets cannot be written.
        """
        # Workers and pip have other current folders.
        folder = self.folder.absolute() / lock.digest
        if _is_complete(folder, lock):
            return folder
        try:
            with self._locked():
                if not _is_complete(folder, lock):
                    self._install_as(lock, folder)
        except OSError as error:
            raise _unusable(error, str(self.folder)) from error
        return folder

    def _lock_of_run(self, run: Path) -> PackageLock | None:
        """Return the lock of a run; say so if its file cannot be read."""
        lock = read_lock(run)
        if lock is None and os.path.lexists(run / LOCK_FILE):
            self.notify(
                f"{run / LOCK_FILE} cannot be read: the run may get other versions of "
                "code.requirements than it began with"
            )
        return lock

    def _install_as(self, lock: PackageLock, folder: Path) -> None:
        # Processes that were killed have left these.
        for stale in folder.parent.glob(f"{UNFINISHED}*"):
            shutil.rmtree(stale, ignore_errors=True)
        begin = time.monotonic()
        new = folder.with_name(f"{UNFINISHED}{os.getpid()}")
        new.mkdir()
        try:
            if lock.packages:
                self._run_pip(lock, new)
            write_lock(new, lock)
            _sync(new)
            if folder.exists():
                # Damaged: a set is written with its lock, without which no run can resume.
                damaged = folder.rename(folder.with_name(f"{UNFINISHED}{lock.digest}"))
                new.rename(folder)
                shutil.rmtree(damaged, ignore_errors=True)
            else:
                new.rename(folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync_path(self.folder)
        seconds = time.monotonic() - begin
        number = len(lock.packages)
        self.notify(
            f"installed {number} package{'s' if number != 1 else ''} of code.requirements in "
            f"{seconds:.1f} s"
        )

    def _run_pip(self, lock: PackageLock, target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="rlhf-pip-") as name:
            file = Path(name, "packages.txt")
            file.write_text("\n".join(package.line for package in lock.packages) + "\n")
            options = ["--no-deps", "--require-hashes", "--requirement", str(file)]
            command = ["install", "--target", str(target), *options]
            run_pip(command, Path(name), self.keep_alive)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder of sets; wait for another process that installs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / SETS_LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            while not _try_lock(descriptor):
                self.keep_alive()
                time.sleep(POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)


def _unusable(error: OSError, folder: str) -> FolderUnusable:
    text = (
        f"packages of code.requirements cannot be stored: got {error} in {folder}; free space "
        "there, or correct its permissions"
    )
    return with_cause(FolderUnusable(text), error)


@contextmanager
def _temporary_files() -> Iterator[None]:
    """Turn faults of the folder of temporary files into errors that name it.

    Raises:
        FolderUnusable: files cannot be written there.
    """
    try:
        yield
    except OSError as error:
        text = (
            f"code.requirements cannot be resolved: got {error}; free space in the folder of "
            "temporary files, correct its permissions, or name another one by TMPDIR"
        )
        raise with_cause(FolderUnusable(text), error) from error


def _is_complete(folder: Path, lock: PackageLock) -> bool:
    """Return True if a folder has the set of a lock."""
    kept = read_lock(folder)
    return kept is not None and kept.digest == lock.digest


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync(folder: Path) -> None:
    """Wait until the disk has all files of a folder."""
    for parent, _, files in os.walk(folder):
        for name in files:
            sync_path(Path(parent, name))
        sync_path(parent)
