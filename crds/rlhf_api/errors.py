"""The errors of the contract.

RlhfError                  base of every error that a user can do something about
├── ManifestError          InvalidManifest   a manifest has problems; all of them are listed
├── OverrideError          InvalidOverride   a `--set PATH=VALUE` cannot be applied
├── UnknownFieldError      UnknownField      a path that names no field of the contract
└── SeveralErrors          SeveralErrors     errors that were found together; all are listed

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
    """The manifest's field that it is about. Empty: none, or its problems have their own."""
    position: str = ""
    """Where that field is, as job.yaml:7:5, or the --set that gave it. Empty: not known."""

    def at(self, *location: str | int) -> Self:
        """The same error, about a field of the manifest; what was said before stays."""
        self.location = self.location or location
        return self

    @property
    def positioned(self) -> str:
        """Its text after its place."""
        return f"{self.position}: {self}" if self.position else str(self)


class ManifestError(RlhfError):
    """A manifest that cannot be used, with every problem that was found in it."""

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
    """Errors that were found together. Each is told with its reason; none follows from another."""

    reason = "SeveralErrors"
    exit_code = ExitCode.USER

    def __init__(self, errors: Sequence[RlhfError]) -> None:
        assert len(errors) > 1, "one error is raised as it is"
        super().__init__("\n".join(f"{error.reason}: {error.positioned}" for error in errors))
        self.errors: tuple[RlhfError, ...] = tuple(errors)
        codes = {error.exit_code for error in errors}
        if len(codes) == 1:  # else what is to be mended comes first
            (self.exit_code,) = codes

    def __reduce__(self) -> tuple[type[SeveralErrors], tuple[Sequence[RlhfError]]]:
        return SeveralErrors, (self.errors,)
