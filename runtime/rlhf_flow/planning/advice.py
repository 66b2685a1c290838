"""What to change about a job that does not fit; each piece of advice was tried: it then fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_api.errors import ManifestError
from rlhf_api.plan import Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.errors import PlanError
from rlhf_flow.planning.changes import Change, Changed
from rlhf_flow.planning.device_changes import device_changes, memory_change
from rlhf_flow.planning.fitting import fit_job, place_job
from rlhf_flow.planning.job_problem import problem_of
from rlhf_flow.planning.memory_choices import memory_choices
from rlhf_flow.planning.problem import Graphs
from rlhf_flow.planning.setting_changes import joint_changes, left_to_the_plan, setting_changes
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.planning.size_changes import size_changes

NOTHING = object()
"""That no value of a change is enough; None is a value."""
FEW_VALUES = 32
"""So many are tried one by one."""
MOST_ADVICE = 6
"""Pieces of it, beside that of devices with more memory."""


@dataclass(frozen=True)
class Advice:
    """What to change."""

    parts: tuple[str, ...]
    """For people, as orders: all of them."""
    changed: Changed
    """The job with it, and its devices."""

    def then(self, change: Change, value: Any) -> Advice:
        """With another change."""
        return Advice((*self.parts, change.text(value)), change.apply(self.changed, value))


def advice_lines(
    job: RLHFJob, graphs: Graphs, devices: Sequence[Pool], shapes: Mapping[str, DecoderShape]
) -> list[str]:
    """What would fit, as lines for the end of a refusal; arguments as of `advice`."""
    found = advice(job, graphs, devices, shapes)
    if not found:
        return ["nothing that was tried would do, not even devices of 4 TiB: take a smaller model"]
    head = "each of these would do:" if len(found) > 1 else "this would do:"
    return [head, *(f"- {'; and '.join(each.parts)}" for each in found)]


def advice(
    job: RLHFJob, graphs: Graphs, devices: Sequence[Pool], shapes: Mapping[str, DecoderShape]
) -> list[Advice]:
    """Changes that make a job fit: single ones, or, where none is enough, those that do together;
    at the end devices with more memory.

    Args:
        job: which does not fit.
        graphs: traced from it.
        devices: its pools, before placement.maxDevices takes fewer.
        shapes: of every role with a model.
    """
    search = _Search(graphs, shapes)
    asked = Advice((), Changed(job, tuple(devices)))
    free = asked
    for change in left_to_the_plan(asked.changed):
        free = free.then(change, change.values[0])
    memory = [memory_change(asked.changed)]
    with_memory = search.alone(memory, asked) or search.alone(memory, free)
    settings = search.alone(setting_changes(asked.changed), asked)
    settings = settings or search.alone(joint_changes(asked.changed), asked)
    if not settings and free.parts and search.fits(free.changed):
        settings = [free]
    found = settings + search.alone(_changes(asked, shapes), asked)
    if not found and free.parts:
        found = search.alone(_changes(free, shapes), free)
    return (found or search.with_devices(free))[:MOST_ADVICE] + with_memory


def _changes(start: Advice, shapes: Mapping[str, DecoderShape]) -> list[Change]:
    """All changes but those of single settings."""
    return [*device_changes(start.changed), *size_changes(start.changed, shapes)]


@dataclass(frozen=True)
class _Search:
    """Tries changes of a job."""

    graphs: Graphs
    shapes: Mapping[str, DecoderShape]

    def fits(self, changed: Changed) -> bool:
        """Whether a job fits in the way to compute that takes least memory."""
        problem = problem_of(changed.job, self.graphs, changed.devices, self.shapes)
        try:
            placed = place_job(problem)
            fit_job(placed, memory_choices(problem, placed.groups)[-1])
        except (PlanError, ManifestError):
            return False
        return True

    def smallest(self, change: Change, start: Advice) -> Any:
        """The first of a change's values with which a job fits; `NOTHING` if there is none."""

        def fits(value: Any) -> bool:
            return self.fits(change.apply(start.changed, value))

        if not change.values or not fits(change.values[-1]):
            return NOTHING
        return change.values[bisect_left(change.values, True, key=fits)]

    def alone(self, changes: Iterable[Change], start: Advice) -> list[Advice]:
        """The smallest of those changes that are enough."""
        found = ((change, self.smallest(change, start)) for change in changes)
        return [start.then(change, value) for change, value in found if value is not NOTHING]

    def with_devices(self, start: Advice) -> list[Advice]:
        """More devices together with other changes: for each of these the fewest devices."""
        found = []
        for pool, more in enumerate(device_changes(start.changed)):
            if not more.values:
                continue
            most = Advice((), more.apply(start.changed, more.values[-1]))
            for change in size_changes(most.changed, self.shapes):
                both = (start.then(change, value) for value in self._enough(change, most))
                grown = [(each, device_changes(each.changed)[pool]) for each in both]
                sizes = [
                    (size, each.then(devices, size))
                    for each, devices in grown
                    if (size := self.smallest(devices, each)) is not NOTHING
                ]
                found += [min(sizes, key=lambda pair: pair[0])[1]] if sizes else []
        return found

    def _enough(self, change: Change, start: Advice) -> Sequence[Any]:
        """Values of a change to try with more devices: each of a few, or the first that fits."""
        if len(change.values) <= FEW_VALUES:
            return change.values
        value = self.smallest(change, start)
        return [] if value is NOTHING else [value]
