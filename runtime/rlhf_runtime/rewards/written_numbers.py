r"""Tells numbers as people write them (`42`, `\frac{1}{2}`, `20%`) from calculations (`40+2`).

Takes what math-verify has parsed: an expression that sympy has not evaluated, and its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sympy import Equality, Expr, FiniteSet, Mul, Number, Pow, Rational, Symbol, UnevaluatedExpr

# Larger powers are not computed to compare them.
MAX_EXPONENT = 1000
_PERCENT = UnevaluatedExpr(Rational(1, 100))
_SUBSCRIPT = re.compile(r"_(?:\d|\{\d+\})")
_FRACTION = re.compile(r"\\frac\{-?\d+\}\{-?(\d+)\}|\d+\s*/\s*-?(\d+)")
_NUMERAL = re.compile(r"\d[\d,.\s]*|\.\d+")
_POWER_OF_LETTER = re.compile(r"[A-Za-z]\s*\^")
_TIMES = re.compile(r"\\cdot|\\times|[*·×]")


def is_number(parsed: Sequence[Any]) -> bool:
    """True for a number that is not a root.

    parsed: what math-verify's `parse` returned.
    """
    expression = _side(parsed[0])
    return (
        isinstance(expression, Expr)
        and not isinstance(expression, Symbol)
        and not is_calculation(parsed)
        and expression.is_rational is not False
    )


def is_calculation(parsed: Sequence[Any]) -> bool:
    """True for an expression that is neither a symbol nor a number as one writes it.

    Numbers are decimals, mixed numbers, percentages, powers and roots of them, scientific notation,
    and fractions that are no integer. Of an equation the right side counts.

    parsed: what math-verify's `parse` returned.
    """
    expression, text = parsed[0], str(parsed[-1])
    if isinstance(expression, Equality):
        text = text.rpartition("=")[2]
    expression = _side(expression)
    if isinstance(expression, FiniteSet):
        return any(is_calculation([element, ""]) for element in expression.args)
    if not isinstance(expression, Expr) or isinstance(expression, Symbol):
        return False
    # The parser evaluates some calculations.
    if isinstance(expression, Number):
        return not _is_numeral(text, bool(expression.is_integer))
    return not _is_power(expression) and not _is_product(expression, text)


def _side(expression: Any) -> Any:
    """Return the right side of an equation; the left one of `42 = n`."""
    if not isinstance(expression, Equality):
        return expression
    return expression.lhs if isinstance(expression.rhs, Symbol) else expression.rhs


def _is_numeral(text: str, is_integer: bool) -> bool:
    """True if the text of an evaluated number has one numeral, one fraction, or one of each."""
    text = _SUBSCRIPT.sub("", text)
    # Such as `e^0`.
    if _POWER_OF_LETTER.search(text):
        return False
    denominators = [one[1] or one[2] for one in _FRACTION.finditer(text)]
    numerals = _NUMERAL.findall(_FRACTION.sub(" ", text))
    if len(numerals) > 1 or len(denominators) > 1:
        return False
    return not (is_integer and denominators) or denominators == ["1"]


def _is_power(expression: Any) -> bool:
    """True for a number, and for a power or root of one."""
    if isinstance(expression, Pow):
        return all(isinstance(part, Number) for part in expression.args)
    return isinstance(expression, Number)


def _is_product(expression: Any, text: str) -> bool:
    """True for a negative number, a percentage, scientific notation, or a fraction."""
    if not isinstance(expression, Mul):
        return False
    factors = [one for one in expression.args if one not in (-1, _PERCENT)]
    below = [one.base for one in factors if isinstance(one, Pow) and one.exp == -1]
    above = [one for one in factors if not (isinstance(one, Pow) and one.exp == -1)]
    if not all(_is_power(part) for part in (*above, *below)):
        return False
    if not below and len(above) == 1:
        return not _TIMES.search(text)
    if not below:
        return len(above) == 2 and any(_is_power_of_ten(one) for one in above)
    return len(above) <= 1 and len(below) == 1 and not _is_integer(above, below[0])


def _is_power_of_ten(expression: Any) -> bool:
    return isinstance(expression, Pow) and expression.base == 10


def _is_integer(above: Sequence[Any], below: Any) -> bool:
    """True if a quotient is an integer, or is too large to tell."""
    parts = [*above, below]
    if any(isinstance(part, Pow) and abs(part.exp) > MAX_EXPONENT for part in parts):
        return True
    numerator = above[0].doit() if above else 1
    denominator = below.doit()
    return bool(denominator == 0 or (numerator / denominator) % 1 == 0)
