"""The job's own Python beside that of the environment: the user's code, and packages it needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Packages:
    """The installed packages of `code.requirements`.

    folder: of the modules.
    digest: of the versions and hashes.
    names: NAME==VERSION of the packages, sorted.
    """

    folder: str
    digest: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class PythonPath:
    """Folders that every process with the user's code can import from.

    code: folders of the user's code, whose modules win over installed ones of the same name.
    packages: installed for that code; modules of the environment win over theirs. None: none.
    """

    code: tuple[str, ...] = ()
    packages: Packages | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders, in the order in which they are searched."""
        return (*self.code, *self._behind)

    @property
    def _behind(self) -> tuple[str, ...]:
        return () if self.packages is None else (self.packages.folder,)

    def add_to(self, path: list[str]) -> list[str]:
        """Put the folders that a path lacks on it, and return them.

        Args:
            path: such as sys.path.
        """
        front = [folder for folder in self.code if folder not in path]
        # Last: a package must not replace a module of this software or of its libraries.
        behind = [folder for folder in self._behind if folder not in path]
        path[:0] = front
        path += behind
        return front + behind


NO_CODE = PythonPath()
