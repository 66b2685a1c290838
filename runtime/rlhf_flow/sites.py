"""Ids of call sites: stable over steps, over rounds of a region, and between trace and run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class CallSites:
    """Numbers the calls of one pass of a step.

    The first call of a kind is `actor.generate`, the second `actor.generate#2`. Inside a region ids
    are prefixed and numbered anew at every entry, so all rounds of a region have the same ids.
    """

    def __init__(self) -> None:
        self._prefix = ""
        self._seen: Counter[str] = Counter()

    def number(self, site: str) -> str:
        """The id of the next call or region of a kind, such as `actor.generate` or `every-10`."""
        self._seen[site] += 1
        count = self._seen[site]
        return f"{self._prefix}{site}" + (f"#{count}" if count > 1 else "")

    @contextmanager
    def inside(self, region: str) -> Iterator[None]:
        """One round of a region, named by its id."""
        prefix, seen = self._prefix, self._seen
        self._prefix, self._seen = f"{region}/", Counter()
        try:
            yield
        finally:
            self._prefix, self._seen = prefix, seen
