"""What makes a schedule of pipelines valid: written down from the rules alone, with nothing of the
planner's but the pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlhf_planner.pipelines.pipeline import Pipeline
from rlhf_planner.pipelines.schedule import Schedule

ROUNDING = 1e-6


class Done(NamedTuple):
    """A micro-batch's way through a stage, when it was done."""

    pipeline: int
    stage: int
    micro_batch: int
    is_backward: bool
    device: int
    begin: float
    end: float


def done_in(schedule: Schedule) -> list[Done]:
    """What a schedule says, in the order of each device."""
    workload = schedule.workload
    return [
        Done(*workload.operations[number], device, schedule.begins[number], schedule.ends[number])
        for device, order in enumerate(schedule.orders)
        for number in order
    ]


def problems(
    pipelines: Sequence[Pipeline], done: Sequence[Done], limit: int | None
) -> Iterator[str]:
    """All that is wrong with a schedule; nothing, if it is valid."""
    yield from _missing(pipelines, done)
    yield from _wrong_times(pipelines, done)
    yield from _too_early(pipelines, done)
    yield from _overlaps(done)
    if limit is not None:
        for device, peak in peaks(pipelines, done).items():
            if peak > limit:
                yield f"device {device} holds {peak} of {limit}"


def _missing(pipelines: Sequence[Pipeline], done: Sequence[Done]) -> Iterator[str]:
    wanted = {
        (index, stage, micro_batch, is_backward)
        for index, pipeline in enumerate(pipelines)
        for stage in range(len(pipeline.devices))
        for micro_batch in range(pipeline.micro_batches)
        for is_backward in (False, True)
    }
    found = [each[:4] for each in done]
    if set(found) != wanted or len(found) != len(wanted):
        yield "not every micro-batch goes through every stage once in each direction"


def _wrong_times(pipelines: Sequence[Pipeline], done: Sequence[Done]) -> Iterator[str]:
    for each in done:
        pipeline = pipelines[each.pipeline]
        times = pipeline.backward_seconds if each.is_backward else pipeline.forward_seconds
        if each.begin < -ROUNDING or abs(each.end - each.begin - times[each.stage]) > ROUNDING:
            yield f"{each} does not take {times[each.stage]}"
        if pipeline.devices[each.stage] != each.device:
            yield f"{each} is on another device"


def _too_early(pipelines: Sequence[Pipeline], done: Sequence[Done]) -> Iterator[str]:
    by_place = {each[:4]: each for each in done}
    for each in done:
        index, stage, micro_batch, is_backward = each[:4]
        last = len(pipelines[index].devices) - 1
        sources = []
        if not is_backward and stage > 0:
            sources.append((index, stage - 1, micro_batch, False))
        if is_backward:
            sources.append((index, stage, micro_batch, False))
            if stage < last:
                sources.append((index, stage + 1, micro_batch, True))
        for source in sources:
            if source in by_place and by_place[source].end > each.begin + ROUNDING:
                yield f"{each} begins before the end of {by_place[source]}"


def _overlaps(done: Sequence[Done]) -> Iterator[str]:
    ordered = sorted(done, key=lambda each: (each.device, each.begin, each.end))
    for one, other in zip(ordered, ordered[1:], strict=False):
        if one.device == other.device and one.end > other.begin + ROUNDING:
            yield f"{one} and {other} at once"


def peaks(pipelines: Sequence[Pipeline], done: Sequence[Done]) -> dict[int, int]:
    """Of each device the most bytes that it holds at a time: looked at in the middle of each
    operation of the device, where nothing begins or ends."""
    by_place = {each[:4]: each for each in done}
    found: dict[int, int] = {}
    for moment in done:
        now = (moment.begin + moment.end) / 2
        held = sum(
            pipelines[each.pipeline].activation_bytes[each.stage]
            for each in done
            if each.device == moment.device
            and not each.is_backward
            and each.begin < now < by_place[(*each[:3], True)].end
        )
        found[moment.device] = max(held, found.get(moment.device, 0))
    return found
