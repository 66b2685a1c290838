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

# What kubectl's parser reads beyond YAML 1.2: words of YAML 1.1, and Go's notations of integers.
_TRUE_1_1 = re.compile(r"y|Y|yes|Yes|YES|on|On|ON")
_FALSE_1_1 = re.compile(r"n|N|no|No|NO|off|Off|OFF")
_GO_INTEGER = re.compile(r"([-+]?)0(?:([bB])([01]+)|([oO]?)([0-7]+)|([xX])([0-9a-fA-F]+))")

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


def kubectl_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar for kubectl, whose parser follows YAML 1.1 in part.

    Source: go-yaml v2, resolve.go.
    """
    if _TRUE_1_1.fullmatch(text):
        return True
    if _FALSE_1_1.fullmatch(text):
        return False
    if len(text) > MAX_NUMBER_CHARACTERS or not re.match(r"[-+.0-9]", text):
        return plain_scalar(text)
    digits = text.replace("_", "")
    if match := _GO_INTEGER.fullmatch(digits):
        sign, _, binary, _, octal, _, hexadecimal = match.groups()
        bases = ((binary, 2), (octal, 8), (hexadecimal, 16))
        (value,) = (int(number, base) for number, base in bases if number is not None)
        return -value if sign == "-" else value
    value_1_2 = plain_scalar(digits)
    # Underscores separate the digits of numbers only.
    return value_1_2 if isinstance(value_1_2, int | float) else plain_scalar(text)


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
