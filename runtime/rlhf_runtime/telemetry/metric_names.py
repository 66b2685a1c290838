"""Names of metrics taken apart, their entries in the table, and texts of values."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from rlhf_runtime.telemetry.metric_table import METRICS, ROLE_METRICS, Format, Metric

# A metric's name between an optional region of the step and an optional call.
_AROUND = re.compile(
    r"(?:((?:(?:every-\d+|repeat|until)(?:\.\d+)?/)+))?(.*/[^.]*)\.?(.*)", re.DOTALL
)


class NameParts(NamedTuple):
    """The parts of a metric's name."""

    region: str
    """Region of the step, such as every-10; empty: the complete step."""
    plain: str
    """The name without region and call."""
    call: str
    """The generate call, or the number of a call, such as actor.2; empty: the call that is
    trained on."""


def parse_metric_name(name: str) -> NameParts:
    """Split a metric's name, which `controller/call_names.py` composes."""
    match = _AROUND.fullmatch(name)
    if match is None:
        return NameParts("", name, "")
    return NameParts((match[1] or "").removesuffix("/"), match[2], match[3])


def describe(name: str) -> Metric:
    """The entry of a metric: its own, a role's, its family's, else one made of its name."""
    region, plain, call = parse_metric_name(name)
    metric = _describe(plain)
    if not region and not call:
        return metric
    about = ", ".join(filter(None, [region, call]))
    return dataclasses.replace(metric, title=f"{metric.title} [{about}]")


def _describe(name: str) -> Metric:
    if name in METRICS:
        return METRICS[name]
    group, _, rest = name.partition("/")
    if group and rest in ROLE_METRICS:
        return dataclasses.replace(
            ROLE_METRICS[rest], title=f"{ROLE_METRICS[rest].title} ({group})"
        )
    plain = (rest or name).replace("_", " ")
    title = plain[:1].upper() + plain[1:] + (f" ({group})" if rest else "")
    for pattern, metric in METRICS.items():
        # The family of a name, such as time/<phase>.
        prefix, member, _ = pattern.partition("<")
        if member and name.startswith(prefix):
            return Metric(
                f"{metric.title}: {name.removeprefix(prefix)}",
                metric.unit,
                metric.description,
                metric.higher_is_better,
                metric.format,
            )
    return Metric(title, "", "", None)


def role_metric(metrics: Iterable[str], name: str) -> str | None:
    """The first metric `<role>/<name>` of any role. None: there is none."""
    return next((metric for metric in metrics if metric.partition("/")[2] == name), None)


def format_value(value: float, style: Format) -> str:
    """Format a value; only seconds and bytes get a unit."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    match style:
        case Format.FRACTION:
            return f"{value:.3f}"
        case Format.COUNT:
            return f"{value:,.0f}"
        case Format.SECONDS:
            return format_seconds(value)
        case Format.BYTES:
            return format_bytes(value)
        case Format.NUMBER:
            return format_number(value)


def format_number(value: float) -> str:
    """Four significant digits, without an exponent between 0.001 and a million."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-3:
        # Python writes e-05 and e+06; shorter is e-5 and e6.
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}"


def format_seconds(seconds: float) -> str:
    """A duration: 340 ms, 1.25 s, 48 s, 3 min 20 s, 2 h 5 min."""
    # Each limit is half a digit early: 999.7 ms is written as 1.00 s, not as 1000 ms.
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def format_bytes(size: float) -> str:
    """A size: 512 B, 1.5 MiB, 80.0 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
