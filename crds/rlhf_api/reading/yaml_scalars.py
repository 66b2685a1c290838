"""Values of unquoted YAML scalars, by the core schema of YAML 1.2.

PyYAML's own rules are those of YAML 1.1, where 1e-6 is a text and `no` is false. Under 1.2 a
learning rate of 1e-6 is a number, and only true and false are booleans.

Source: YAML 1.2.2, section 10.3.2.
"""

from __future__ import annotations

import re

Scalar = None | bool | int | float | str

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?(\.inf|\.Inf|\.INF)")
_NAN = re.compile(r"\.nan|\.NaN|\.NAN")

# Longest number; a longer one is read as a text.
# The conversion of long numbers is slow, and no field needs them.
MAX_NUMBER_CHARACTERS = 64


def plain_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    return text if len(text) > MAX_NUMBER_CHARACTERS else _number(text)


def _number(text: str) -> int | float | str:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITY.fullmatch(text):
        return float("-inf") if text.startswith("-") else float("inf")
    return float("nan") if _NAN.fullmatch(text) else text
