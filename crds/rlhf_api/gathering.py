"""Telling what several checks have found at once, not only what the first one did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlhf_api.errors import ManifestError, RlhfError, SeveralErrors


class ErrorCollector:
    """The errors of checks that do not depend on each other."""

    def __init__(self) -> None:
        self.errors: list[RlhfError] = []

    @contextmanager
    def check(self) -> Iterator[None]:
        """Keep what is raised inside for later."""
        try:
            yield
        except SeveralErrors as several:
            self.errors += several.errors
        except RlhfError as error:
            self.errors.append(error)

    def raise_all(self) -> None:
        """Raise what was kept.

        Raises:
            RlhfError: the only one.
            ManifestError: all are problems of a manifest.
            SeveralErrors: others.
        """
        raise_together(self.errors)


def raise_together(errors: Sequence[RlhfError]) -> None:
    """Raise the given errors as one, if there are any.

    Raises:
        RlhfError: the only one.
        ManifestError: all are problems of a manifest.
        SeveralErrors: others.
    """
    problems = [each.problems for each in errors if isinstance(each, ManifestError)]
    if len(errors) == 1:
        raise errors[0]
    if problems and len(problems) == len(errors):
        raise ManifestError([problem for of_one in problems for problem in of_one])
    if errors:
        raise SeveralErrors(errors)
