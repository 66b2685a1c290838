"""How a benchmark answers: a short table for people, then one line of JSON for machines."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SMALLEST_SIZE = "the smallest size: this run says nothing about speed"


def note(text: str) -> None:
    """Say on stderr what the benchmark is doing."""
    print(text, file=sys.stderr, flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as they must be: the first to the left, numbers to the right."""
    shown = [list(header), *([_shown(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(header))]
    for row in shown:
        first, *others = (
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip(), flush=True)


def print_json(benchmark: str, *, smallest: bool, **values: Any) -> None:
    """The last line: what was measured, with its size, and the machine's cores and load.

    In the smallest size the line before it says that times mean nothing.
    """
    if smallest:
        print(SMALLEST_SIZE)
    facts = {
        "benchmark": benchmark,
        "smallest": smallest,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps({**facts, **values}, allow_nan=False), flush=True)


def verdict(name: str, ratio: float, target: float, *, smallest: bool) -> str:
    """`name: 1.08x of the baseline, target at most 1.15x: reached`."""
    judged = judgement(ratio <= target, smallest=smallest)
    return f"{name}: {ratio:.2f}x of the baseline, target at most {target:g}x: {judged}"


def bound(name: str, value: float, unit: str, most: float, *, smallest: bool) -> str:
    """`name: 0.05 ms, target at most 0.2 ms: reached`."""
    judged = judgement(value <= most, smallest=smallest)
    return f"{name}: {value:.2f} {unit}, target at most {most:g} {unit}: {judged}"


def judgement(reached: bool, *, smallest: bool) -> str:
    """`reached` or `MISSED`; in the smallest size neither."""
    if smallest:
        return "not judged"
    return "reached" if reached else "MISSED"


def milliseconds(seconds: Sequence[float]) -> float:
    """The median in milliseconds."""
    return 1000 * statistics.median(seconds)


def paired_ratio(ours: Sequence[float], baseline: Sequence[float]) -> float:
    """Median over rounds of ours / the baseline beside it: a slow minute slows both alike."""
    return statistics.median(a / b for a, b in zip(ours, baseline, strict=True))


def phase_medians(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median milliseconds by phase; a phase that a record lacks counts as 0."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return {name: milliseconds([record.get(name, 0.0) for record in records]) for name in names}


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 10 else _whole(value)


def _whole(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
