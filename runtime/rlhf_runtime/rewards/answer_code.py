"""Detects answers that a dataset of reasoning_gym would run as a program. Pure.

Some datasets evaluate an answer by `eval`, or by `parse_expr` of sympy, which calls it. A policy
writes these answers, and such a program could do whatever the verifier's process may.
"""

from __future__ import annotations

import ast
import builtins
import re
import unicodedata
from types import BuiltinFunctionType

# Those that evaluate by eval, after a comparison with the text of the right answers.
_BY_EVAL = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
# Those that evaluate by sympy's parse_expr.
_BY_SYMPY = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
# Functions of Python that parse_expr calls, without those of arithmetic.
_FUNCTIONS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, BuiltinFunctionType)
) - {"abs", "divmod", "max", "min", "pow", "round", "sum"}
# Texts, items, attributes and names of Python's own.
_NO_EXPRESSION = re.compile(r"""["'\[\]{}:;@]|__|\.\s*[^\W\d]""")
_NAME = re.compile(r"[^\W\d]\w*")


def is_program(answer: str, dataset: str) -> bool:
    """True if a dataset would evaluate an answer that is more than a value or an expression.

    Args:
        answer: a response, or a part of it.
        dataset: the generator's name.
    """
    if dataset in _BY_EVAL:
        return not _is_harmless_to_eval(answer)
    if dataset in _BY_SYMPY:
        # As Python reads names.
        text = unicodedata.normalize("NFKC", answer)
        return bool(_NO_EXPRESSION.search(text)) or not _FUNCTIONS.isdisjoint(_NAME.findall(text))
    return False


def _is_harmless_to_eval(answer: str) -> bool:
    """True for a literal, a single name, and a text that Python cannot parse."""
    # As eval does.
    text = answer.lstrip(" \t")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return True
    if isinstance(tree.body, ast.Name):
        return True
    try:
        ast.literal_eval(tree)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True
