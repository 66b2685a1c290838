"""The errors of the contract.

RlhfError                  base of every error that a user can fix
├── ManifestError          InvalidManifest   a manifest has problems; all of them are listed
├── OverrideError          InvalidOverride   a `--set PATH=VALUE` cannot be applied
├── UnknownFieldError      UnknownField      a path that names no field of the contract
└── SeveralErrors          SeveralErrors     independent errors; all are listed

Other packages derive theirs from RlhfError. `reason` is stable: it appears in conditions, events
and metrics, and failure rules match it. `exit_code` is what the command or driver ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from rlhf_api.exits import ExitCode
from rlhf_api.problems import FieldPath, Problem


class RlhfError(Exception):
    """An error with a stable reason and an exit code; its text says what, got, allowed, do."""

    reason: ClassVar[str] = "Error"
    exit_code: ExitCode = ExitCode.BUG
    location: FieldPath = ()
    """The manifest field in question. Empty: none, or each problem has its own."""
    position: str = ""
    """Position of that field, such as job.yaml:7:5, or the --set that set it. Empty: unknown."""
    is_disk_full: bool = False
    """True if a full disk or an exhausted quota caused it."""

    def at(self, *location: str | int) -> Self:
        """Set the field in question, unless one is set, and return the error."""
        self.location = self.location or location
        return self

    @property
    def positioned(self) -> str:
        """The error's text, preceded by its position."""
        return f"{self.position}: {self}" if self.position else str(self)


class ManifestError(RlhfError):
    """A manifest that cannot be used, with all of its problems."""

    reason = "InvalidManifest"
    exit_code = ExitCode.MANIFEST

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "a ManifestError needs a problem"
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems: tuple[Problem, ...] = tuple(problems)


class OverrideError(RlhfError):
    """A `--set PATH=VALUE` that cannot be applied."""

    reason = "InvalidOverride"
    exit_code = ExitCode.MANIFEST


class UnknownFieldError(RlhfError):
    """A path that names no field of the contract."""

    reason = "UnknownField"
    exit_code = ExitCode.MANIFEST


class SeveralErrors(RlhfError):
    """Independent errors of one check, each listed with its reason."""

    reason = "SeveralErrors"
    exit_code = ExitCode.USER

    def __init__(self, errors: Sequence[RlhfError]) -> None:
        assert len(errors) > 1, "one error is raised as it is"
        super().__init__("\n".join(f"{error.reason}: {error.positioned}" for error in errors))
        self.errors: tuple[RlhfError, ...] = tuple(errors)
        codes = {error.exit_code for error in errors}
        if len(codes) == 1:  # else ExitCode.USER: running again cannot fix them all
            (self.exit_code,) = codes

    def __reduce__(self) -> tuple[type[SeveralErrors], tuple[Sequence[RlhfError]]]:
        return SeveralErrors, (self.errors,)
