"""A step as a timeline: one row per process, one bar per call. Pure: spans in, text out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rlhf_runtime.telemetry.metric_names import format_seconds
from rlhf_runtime.telemetry.plots import Scale, nice_ticks
from rlhf_runtime.telemetry.records import Span, StepRecord

# Maximum number of lanes for concurrent calls of a process.
MAX_LANES = 4
# Minimum width of a bar with the name of its call.
LABEL_FROM_PERCENT = 5.0


def sample_steps(steps: Sequence[StepRecord], count: int = 12) -> tuple[int, ...]:
    """Steps to draw: first, last, slowest, and others evenly between."""
    if not steps:
        return ()
    numbers = [record.step for record in steps]
    slowest = max(steps, key=lambda record: record.seconds).step
    chosen = {numbers[0], numbers[-1], slowest}
    size = min(count, len(numbers))
    for index in range(size):
        if len(chosen) >= size:
            break
        chosen.add(numbers[index * (len(numbers) - 1) // max(1, size - 1)])
    return tuple(sorted(chosen))


def process_order(process: str) -> tuple[int, list[tuple[int, int, str]]]:
    """Sorting key: the driver, then ranks by number, then the others by name."""
    group = 0 if process == "driver" else 1 if process.startswith("rank") else 2
    parts = re.split(r"(\d+)", process)
    return group, [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts if p]


def lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Arrange the spans of a process in lanes without overlap, except in the last one."""
    result: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        for lane in result:
            if lane[-1].end <= span.start + 1e-6:
                lane.append(span)
                break
        else:
            if len(result) < MAX_LANES:
                result.append([span])
            else:
                result[-1].append(span)
    return result


def busy_seconds(spans: Iterable[Span]) -> float:
    """Total time in which at least one span was running."""
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def timeline(step: int, spans: Sequence[Span], colours: Mapping[str, int], limit: int) -> str:
    """Draw a step's spans, the longest `limit` of them."""
    begin, end = min(s.start for s in spans), max(s.end for s in spans)
    length = max(end - begin, 1e-9)
    drawn = sorted(spans, key=lambda span: -span.seconds)[:limit]
    processes = sorted({span.process for span in spans}, key=process_order)
    rows = []
    for process in processes:
        busy = busy_seconds(span for span in spans if span.process == process)
        own = [span for span in drawn if span.process == process]
        rows.append(_row(process, own, 1 - busy / length, begin, length, colours))
    left_out = len(spans) - len(drawn)
    note = f'<p class="note">{left_out:,} short calls are not drawn.</p>' if left_out else ""
    return f'<div class="timeline" data-step="{step}">{"".join(rows)}{_axis(length)}</div>{note}'


def _row(
    process: str,
    spans: Sequence[Span],
    idle: float,
    begin: float,
    length: float,
    colours: Mapping[str, int],
) -> str:
    bars = "".join(
        f'<div class="lane">{"".join(_bar(span, begin, length, colours) for span in lane)}</div>'
        for lane in lanes(spans)
    )
    share = f"{max(0.0, idle):.0%}"
    return (
        f'<div class="row"><span class="who">{escape(process)}</span>'
        f'<div class="lanes">{bars}</div>'
        f'<span class="idle" title="{share} of the step idle">{share}</span></div>'
    )


def _bar(span: Span, begin: float, length: float, colours: Mapping[str, int]) -> str:
    left = (span.start - begin) / length * 100
    width = span.seconds / length * 100
    call = f"{span.role} {span.call}".strip()
    text = escape(span.call.replace("_", " ")) if width >= LABEL_FROM_PERCENT else ""
    return (
        f'<span class="bar b{colours[span.call]}" style="left:{left:.2f}%;width:{width:.2f}%" '
        f'data-c="{escape(call, quote=True)}" data-s="{span.start - begin:.4f}" '
        f'data-d="{span.seconds:.4f}">{text}</span>'
    )


def _axis(length: float) -> str:
    scale = Scale(0.0, length)
    marks = "".join(
        f'<span style="left:{scale.percent(tick):.2f}%">{_time(tick)}</span>'
        for tick in nice_ticks(scale, 6)
        if scale.percent(tick) < 97
    )
    return (
        f'<div class="row axis" aria-hidden="true"><span class="who"></span>'
        f'<div class="lanes">{marks}</div><span class="idle">idle</span></div>'
    )


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "0"
