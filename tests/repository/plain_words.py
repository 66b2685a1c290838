"""Measures of plain English: names, openings of docstrings, comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field

_DIALECT = """
each held told given most found place way room least took taken made known wanted asked apart beside
anew whole gone stays goes judge judged tenant look looks silent agreeing
"""
_RIDDLES = "what which where whether how who whose why when that those these of from so as"
DIALECT = frozenset(_DIALECT.split())
"""Words that say too little as names: docs/glossary.md has better ones."""
RIDDLES = frozenset(_RIDDLES.split())
"""A docstring opens with a noun or a verb, not with a clause."""


@dataclass
class Measures:
    """Counts of one or several files, and the lines to mend."""

    words: int = 0
    dialect: list[str] = field(default_factory=list)
    docstrings: int = 0
    riddles: list[str] = field(default_factory=list)
    lines: int = 0
    comments: int = 0

    def __iadd__(self, other: Measures) -> Measures:
        self.words += other.words
        self.dialect += other.dialect
        self.docstrings += other.docstrings
        self.riddles += other.riddles
        self.lines += other.lines
        self.comments += other.comments
        return self


def measures_of(text: str, path: str) -> Measures:
    """Measure the source text of one Python file."""
    tree = ast.parse(text)
    measures = Measures(lines=text.count("\n"))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    measures.comments = sum(token.type == tokenize.COMMENT for token in tokens)
    for name, line in _names(tree):
        words = _words(name)
        measures.words += len(words)
        measures.dialect += [f"{path}:{line}: {name}" for word in words if word in DIALECT]
    for docstring in _docstrings(tree):
        measures.docstrings += 1
        first = (str(docstring.value).split() or [""])[0].strip(",.:;`'\"").lower()
        if first in RIDDLES:
            opening = " ".join(str(docstring.value).split())[:70]
            measures.riddles.append(f"{path}:{docstring.lineno}: {opening}")
    return measures


def _words(name: str) -> list[str]:
    """Words of a name in snake case or camel case, in lower case."""
    snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word.lower() for word in snake.split("_") if word and not word.isdigit()]


def _names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that the file defines: functions, classes, parameters, variables."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as docstring):
                    yield docstring
