"""Output of a benchmark: a short table for people, then one line of JSON for machines."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SMALLEST_SIZE = "the smallest size: this run says nothing about speed"


def note(text: str) -> None:
    """Print progress."""
    # On stderr: tables and JSON on stdout can be piped.
    print(text, file=sys.stderr, flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns: the first to the left, numbers to the right."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        first, *others = (
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip(), flush=True)


def print_json(benchmark: str, *, smallest: bool, **values: Any) -> None:
    """Print the last line: results, and the machine's cores and load."""
    if smallest:
        print(SMALLEST_SIZE)
    # Times of a loaded machine are no result: whoever compares two lines sees the load.
    facts = {
        "benchmark": benchmark,
        "smallest": smallest,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
    }
    # NaN is no JSON, and a benchmark that measured NaN is wrong.
    print(json.dumps({**facts, **values}, allow_nan=False), flush=True)


def verdict(name: str, ratio: float, target: float, *, smallest: bool) -> str:
    """Line of text: `name: 1.08x of the baseline, target at most 1.15x: reached`."""
    result = target_result(ratio <= target, smallest=smallest)
    return f"{name}: {ratio:.2f}x of the baseline, target at most {target:g}x: {result}"


def limit_verdict(name: str, value: float, unit: str, limit: float, *, smallest: bool) -> str:
    """Line of text: `name: 0.05 ms, target at most 0.2 ms: reached`."""
    result = target_result(value <= limit, smallest=smallest)
    return f"{name}: {value:.2f} {unit}, target at most {limit:g} {unit}: {result}"


def target_result(reached: bool, *, smallest: bool) -> str:
    """`reached` or `MISSED`; in the smallest size neither."""
    if smallest:
        return "not checked"
    return "reached" if reached else "MISSED"


def milliseconds(seconds: Sequence[float]) -> float:
    """Median in milliseconds."""
    return 1000 * statistics.median(seconds)


def paired_ratio(ours: Sequence[float], baseline: Sequence[float]) -> float:
    """Median over rounds of ours / the baseline of the same round."""
    # Not the ratio of medians: a slow minute slows both sides of its rounds alike.
    return statistics.median(a / b for a, b in zip(ours, baseline, strict=True))


def phase_medians(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median milliseconds by phase; a phase that a record lacks counts as 0."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return {name: milliseconds([record.get(name, 0.0) for record in records]) for name in names}


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
