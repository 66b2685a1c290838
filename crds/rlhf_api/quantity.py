"""Kubernetes quantities: amounts with or without a unit, such as 64Gi, 500m or 8.

A manifest may write an integer where no unit is needed; the models keep every quantity as text.
Source: k8s.io/apimachinery/pkg/api/resource, Quantity.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

from rlhf_api.base import QUANTITY_PATTERN

# Kubernetes' marker for a value that is an integer or a string.
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
# Longest text of a quantity.
MAX_CHARACTERS: Final = 32
# Largest amount; larger ones are reduced to it, as in Kubernetes.
MAX_AMOUNT: Final = 2**63 - 1

_POWERS = {"k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_UNITS = (
    {"": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
    | {unit: Fraction(1000**power) for unit, power in _POWERS.items()}
    | {f"{unit.upper()}i": Fraction(1024**power) for unit, power in _POWERS.items()}
)
_ALMOST = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtpe])(i?)b?\s*", re.IGNORECASE)


def _as_text(value: Any) -> Any:
    is_amount = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_AMOUNT
    return str(value) if is_amount else value


# An amount of memory in bytes, or of CPU in cores.
Quantity = Annotated[
    str,
    BeforeValidator(_as_text),
    Field(pattern=QUANTITY_PATTERN, max_length=MAX_CHARACTERS),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_AMOUNT},
                {"type": "string", "pattern": QUANTITY_PATTERN, "maxLength": MAX_CHARACTERS},
            ],
            INT_OR_STRING: True,
        }
    ),
]


def quantity_value(quantity: str) -> int:
    """Parse a quantity to an integer number of bytes or cores, rounded up, at most 2^63 - 1.
    Kubernetes rounds the same way."""
    return min(ceil(quantity_amount(quantity)), MAX_AMOUNT)


def quantity_amount(quantity: str) -> Fraction:
    """Parse a quantity to its exact number of bytes or cores."""
    parts = re.fullmatch(r"([0-9.]+)(?:[eE]([+-]?[0-9]+)|([A-Za-z]*))", quantity)
    assert parts is not None, f"not a quantity: {quantity}"
    amount, exponent, unit = parts.groups()
    # Fractions: floats would round large amounts.
    scale = Fraction(10) ** int(exponent) if exponent else _UNITS[unit]
    return Fraction(amount) * scale


def guess_quantity(text: str) -> str | None:
    """Guess the intended quantity of a text such as `512 MiB` or `2GB`; None if there is none."""
    parts = _ALMOST.fullmatch(text)
    if parts is None:
        return None
    amount, unit, binary = parts.groups()
    # Kubernetes writes k for 1000 and Ki for 1024.
    letter = "k" if unit in "kK" and not binary else unit.upper()
    return f"{amount}{letter}{binary.lower()}"
