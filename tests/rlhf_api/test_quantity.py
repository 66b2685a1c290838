"""Kubernetes quantities: what may be written, and how much it is."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rlhf_api.quantity import MAX_AMOUNT, Quantity, guess_quantity, quantity_value

ADAPTER: TypeAdapter[str] = TypeAdapter(Quantity)
GIB = 2**30


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        (5, 5),
        ("5", 5),
        ("1Ki", 1024),
        ("2k", 2000),
        ("3Gi", 3 * GIB),
        ("1.5Gi", 3 * GIB // 2),
        (".5Mi", 2**19),
        ("80G", 80 * 10**9),
        ("1T", 10**12),
        ("12E", MAX_AMOUNT),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("2500m", 3),
        ("0", 0),
    ],
)
def test_a_quantity_is_so_many_whole_units(written: Any, amount: int) -> None:
    assert quantity_value(ADAPTER.validate_python(written)) == amount


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(["", "k", "M", "Mi", "Gi"]))
def test_fractions_are_rounded_up(integer: int, thousandths: int, unit: str) -> None:
    size = {"": 1, "k": 10**3, "M": 10**6, "Mi": 2**20, "Gi": GIB}[unit]
    exact = Fraction(integer * 1000 + thousandths, 1000) * size
    found = quantity_value(ADAPTER.validate_python(f"{integer}.{thousandths:03}{unit}"))
    assert 0 <= found - exact < 1


@pytest.mark.parametrize(
    "written",
    [-1, 0.5, True, None, "", "-1", "4 Gi", "2GB", "1KI", "1Xi", "1e999", "Gi", "1,5Gi", "9" * 33],
)
def test_what_kubernetes_does_not_take_is_refused(written: Any) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(written)


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("512 MiB", "512Mi"),
        ("2GB", "2G"),
        ("2gb", "2G"),
        ("1.5 gib", "1.5Gi"),
        ("4KB", "4k"),
        ("much", None),
        ("4 gigabytes", None),
    ],
)
def test_what_was_meant_is_told(text: str, quantity: str | None) -> None:
    assert guess_quantity(text) == quantity
    assert quantity is None or ADAPTER.validate_python(quantity) == quantity
