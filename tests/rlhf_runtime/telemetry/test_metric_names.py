"""Names have meanings, values have readable forms."""

from __future__ import annotations

import math

import pytest

from rlhf_runtime.telemetry.metric_names import (
    describe,
    format_bytes,
    format_number,
    format_seconds,
    format_value,
)
from rlhf_runtime.telemetry.metric_table import METRICS, Format


def test_every_metric_has_a_title_and_a_description() -> None:
    for name, metric in METRICS.items():
        assert metric.title and metric.description, name
        assert name.count("/") == 1 or name.partition("<")[0].count("/") == 2


def test_a_member_of_a_family_takes_its_meaning() -> None:
    assert describe("time/generate").format is Format.SECONDS
    assert describe("memory/rank 0").unit == "bytes"
    assert describe("score/abstained/exact").title == "Abstained: exact"
    assert describe("score/abstained").unit == describe("score/abstained/exact").unit == "responses"
    assert describe("reward/exact").title == "Exact (reward)"


def test_an_unknown_metric_is_just_its_name() -> None:
    metric = describe("mine/odd_thing")
    assert (metric.title, metric.unit, metric.higher_is_better) == ("Odd thing (mine)", "", None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1.000"), (-0.25, "-0.2500"), (1234.5, "1,234"), (0.0123456, "0.01235"),
        (3.14e-7, "3.14e-7"), (2e6, "2.00e6"), (999_999.0, "999,999"),
    ],
)  # fmt: skip
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.034, "34 ms"), (0.9996, "1.00 s"), (1.25, "1.25 s"), (9.999, "10.0 s"), (48.0, "48.0 s"),
        (59.97, "1 min 0 s"), (200.4, "3 min 20 s"), (3599.7, "1 h 0 min"), (7500.0, "2 h 5 min"),
    ],
)  # fmt: skip
def test_durations_read_well_at_every_size(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_sizes_are_binary() -> None:
    assert [format_bytes(n) for n in (512, 1536, 80 * 2**30, 3 * 2**40)] == [
        "512 B", "1.5 KiB", "80.0 GiB", "3.0 TiB",
    ]  # fmt: skip


@pytest.mark.parametrize("style", list(Format))
def test_values_that_are_not_finite_say_so(style: Format) -> None:
    assert format_value(math.nan, style) == "NaN"
    assert format_value(-math.inf, style) == "-∞"
