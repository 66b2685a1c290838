"""Collects the errors of several checks, so that a user sees all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlhf_api.errors import ManifestError, RlhfError, SeveralErrors


class ErrorCollector:
    """Collects the errors of independent checks."""

    def __init__(self) -> None:
        self.errors: list[RlhfError] = []

    @contextmanager
    def check(self) -> Iterator[None]:
        """Collect an error that is raised inside."""
        try:
            yield
        # Flat: a collection never contains another one.
        except SeveralErrors as several:
            self.errors += several.errors
        except RlhfError as error:
            self.errors.append(error)

    def raise_all(self) -> None:
        """Raise the collected errors as one, if there are any.

        Raises:
            RlhfError: the only one.
            ManifestError: all are problems of a manifest.
            SeveralErrors: otherwise.
        """
        raise_together(self.errors)


def raise_together(errors: Sequence[RlhfError]) -> None:
    """Raise errors as one, if there are any.

    Raises:
        RlhfError: the only one.
        ManifestError: all are problems of a manifest.
        SeveralErrors: otherwise.
    """
    problems = [error.problems for error in errors if isinstance(error, ManifestError)]
    if len(errors) == 1:
        raise errors[0]
    if problems and len(problems) == len(errors):
        raise ManifestError([problem for group in problems for problem in group])
    if errors:
        raise SeveralErrors(errors)
