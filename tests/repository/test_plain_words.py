"""The source is written in plain English: names, openings of docstrings, comments."""

from __future__ import annotations

import textwrap
from functools import cache

import pytest

from .plain_words import Measures, measures_of
from .tracked_files import ROOT, tracked_files

PACKAGES = ("crds/", "operator/", "runtime/")
PROGRAMS = ("benchmarks/", "tools/")
MAX_DIALECT = 0.003
"""Share of the words of names."""
MAX_RIDDLES = {PACKAGES: 0.05, PROGRAMS: 0.02}
"""Share of docstrings."""
MIN_COMMENTS = 0.03
"""Share of lines."""

# Apart, so that many good lines of one do not hide bad ones of the other.
both_trees = pytest.mark.parametrize("folders", [PACKAGES, PROGRAMS], ids=["packages", "programs"])


@cache
def measures_below(folders: tuple[str, ...]) -> Measures:
    """Measure all Python files below some folders."""
    total = Measures()
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(folders) and name.endswith(".py"):
            total += measures_of(path.read_text(encoding="utf-8"), name)
    return total


def shown(share: float, limit: str, lines: list[str]) -> str:
    return "\n".join([f"got {share:.2%}, allowed {limit}: see docs/glossary.md", *lines[:50]])


@both_trees
def test_names_use_the_words_of_the_field(folders: tuple[str, ...]) -> None:
    sources = measures_below(folders)
    share = len(sources.dialect) / sources.words
    assert share <= MAX_DIALECT, shown(share, f"at most {MAX_DIALECT:.1%}", sources.dialect)


@both_trees
def test_docstrings_open_with_a_noun_or_a_verb(folders: tuple[str, ...]) -> None:
    sources = measures_below(folders)
    share, limit = len(sources.riddles) / sources.docstrings, MAX_RIDDLES[folders]
    assert share <= limit, shown(share, f"at most {limit:.0%}", sources.riddles)


@both_trees
def test_reasons_stand_as_comments(folders: tuple[str, ...]) -> None:
    sources = measures_below(folders)
    share = sources.comments / sources.lines
    assert share >= MIN_COMMENTS, shown(share, f"at least {MIN_COMMENTS:.0%}", [])


def test_the_measures_count_names_openings_and_comments() -> None:
    source = textwrap.dedent(
        '''
        """Where numbers are."""

        MOST_ROWS = 3  # a limit
        """Rows."""


        class FoundPlace:
            def holds(self, each: int) -> bool:
                """Whether it does."""
                for rank in range(each):
                    pass
        '''
    )
    measures = measures_of(source, "a.py")
    assert sorted(measures.dialect) == [
        "a.py:4: MOST_ROWS",
        "a.py:8: FoundPlace",
        "a.py:8: FoundPlace",
        "a.py:9: each",
    ]
    assert measures.riddles == ["a.py:2: Where numbers are.", "a.py:10: Whether it does."]
    assert (measures.words, measures.docstrings) == (8, 3)
    assert (measures.lines, measures.comments) == (12, 1)
