"""Finds changes with which a job fits; each piece of advice was tried."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlhf_api.errors import ManifestError
from rlhf_api.plan import Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Offload, TrainingEngineType, TrainingParallelism
from rlhf_flow.errors import PlanError
from rlhf_planner.advice.changes import (
    Change,
    Changed,
    Path,
    device_changes,
    joint_changes,
    left_to_the_plan,
    memory_change,
    setting_changes,
    smaller_number,
    value_at,
    with_field,
)
from rlhf_planner.candidates.completions import possible_cuts
from rlhf_planner.feasibility import apply_placement, check_feasible
from rlhf_planner.memory.choices import memory_choices
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.problem import Graphs
from rlhf_sizing.shape import DecoderShape

# Advice shortens lengths to this fraction at most: beyond that it would be another job.
MIN_LENGTH_SHARE = 8


def size_changes(current: Changed, shapes: Mapping[str, DecoderShape]) -> list[Change]:
    """Changes of batch sizes and lengths, and of models' cuts."""
    job, rollout = current.job, current.job.spec.rollout
    where: Path = ("spec", "rollout")
    lengths = [
        smaller_number(f"rollout.{name}", (*where, field), job, -(-length // MIN_LENGTH_SHARE))
        for name, field, length in (
            ("maxResponseTokens", "max_response_tokens", rollout.max_response_tokens),
            ("maxPromptTokens", "max_prompt_tokens", rollout.max_prompt_tokens),
        )
    ]
    concurrency = smaller_number(
        "rollout.maxConcurrentSequences", (*where, "max_concurrent_sequences"), job, 1
    )
    return [*_cuts(current, shapes), *lengths, concurrency]


def _cuts(current: Changed, shapes: Mapping[str, DecoderShape]) -> Iterator[Change]:
    """Other cuts of models that Megatron trains, or of FSDP's if Megatron trained them."""
    models = current.job.spec.models
    megatron = [role for role, model in models.items() if model.uses_megatron]
    names = ", ".join(f"models.{role}.training" for role in megatron or models)
    begin = f"set parallelism of {names}" if megatron else f"set engine of {names} to Megatron"

    def text(cut: tuple[int, int]) -> str:
        to = f"{{tensor: {cut[0]}, pipeline: {cut[1]}}}"
        return f"{begin} to {to}" if megatron else f"{begin}, with parallelism {to}"

    def apply(changed: Changed, cut: tuple[int, int]) -> Changed:
        for role in megatron or models:
            path: Path = ("spec", "models", role, "training")
            sequence = value_at(changed.job, path).parallelism.sequence
            tensor, pipeline = cut
            parallelism = TrainingParallelism(tensor=tensor, pipeline=pipeline, sequence=sequence)
            changed = with_field(changed, TrainingEngineType.MEGATRON, path=(*path, "engine"))
            changed = with_field(changed, parallelism, path=(*path, "parallelism"))
        return changed

    cuts = possible_cuts(current.devices, [shapes[role] for role in models if role in shapes])
    now = max((models[role].training.parallelism.num_ranks for role in megatron), default=1)
    # Only more parts than now need less memory on each device.
    yield Change([cut for cut in cuts if cut[0] * cut[1] > now], apply, text)
    if megatron:
        derived = any(models[role].training.offload is Offload.DERIVED for role in megatron)
        left_out = "parallelism and offload: Derived" if derived else "parallelism"
        yield Change(
            [TrainingEngineType.FSDP],
            partial(_to_fsdp, roles=megatron),
            lambda engine: f"set engine of {names} to {engine.value}, without {left_out}",
        )


def _to_fsdp(changed: Changed, engine: TrainingEngineType, roles: Sequence[str]) -> Changed:
    for role in roles:
        path: Path = ("spec", "models", role, "training")
        changed = with_field(changed, engine, path=(*path, "engine"))
        # Only Megatron has these settings, and a manifest may not have them with FSDP: they return
        # to their defaults.
        changed = with_field(changed, TrainingParallelism(), path=(*path, "parallelism"))
        changed = with_field(changed, True, path=(*path, "distributed_optimizer"))
        if value_at(changed.job, path).offload is Offload.DERIVED:
            changed = with_field(changed, Offload.AUTO, path=(*path, "offload"))
    return changed


# Marks that no value of a change is enough. None cannot: it is the value of a setting left open.
NOTHING = object()
# Changes with at most this number of values are tried with each of them.
FEW_VALUES = 32
# Limit of pieces of advice; devices with more memory come in addition.
MAX_ADVICE = 6


@dataclass(frozen=True)
class Advice:
    """A set of changes."""

    parts: tuple[str, ...]
    """The changes as orders, for people; all of them are needed."""
    changed: Changed
    """The changed job, and its devices."""

    def then(self, change: Change, value: Any) -> Advice:
        """Add another change."""
        return Advice((*self.parts, change.text(value)), change.apply(self.changed, value))


def advice_lines(
    job: RLHFJob, graphs: Graphs, devices: Sequence[Pool], shapes: Mapping[str, DecoderShape]
) -> list[str]:
    """Advice as lines for the end of a refusal; arguments as for `advice`."""
    pieces = advice(job, graphs, devices, shapes)
    if not pieces:
        return ["nothing that was tried would do, not even devices of 4 TiB: take a smaller model"]
    head = "each of these would do:" if len(pieces) > 1 else "this would do:"
    return [head, *(f"- {'; and '.join(piece.parts)}" for piece in pieces)]


def advice(
    job: RLHFJob, graphs: Graphs, devices: Sequence[Pool], shapes: Mapping[str, DecoderShape]
) -> list[Advice]:
    """Changes that make a job fit: single ones, or combinations if none is enough; at the end
    devices with more memory.

    Args:
        job: the job that does not fit.
        graphs: traced from it.
        devices: its pools, before placement.maxDevices.
        shapes: of every role with a model.
    """
    search = _Search(graphs, shapes)
    current = Advice((), Changed(job, tuple(devices)))
    free = current
    # The job with all optional settings left to the plan.
    for change in left_to_the_plan(current.changed):
        free = free.then(change, change.values[0])
    memory = [memory_change(current.changed)]
    # Larger devices are advised last: they are the most expensive change.
    with_memory = search.single(memory, current) or search.single(memory, free)
    settings = search.single(setting_changes(current.changed), current)
    # One model's setting may not be enough: then the same change is tried for all.
    settings = settings or search.single(joint_changes(current.changed), current)
    if not settings and free.parts and search.fits(free.changed):
        settings = [free]
    pieces = settings + search.single(_changes(current, shapes), current)
    if not pieces and free.parts:
        # The manifest's own settings may be in the way: try other changes without them.
        pieces = search.single(_changes(free, shapes), free)
    return (pieces or search.with_devices(free))[:MAX_ADVICE] + with_memory


def _changes(start: Advice, shapes: Mapping[str, DecoderShape]) -> list[Change]:
    """All changes except those of single settings."""
    return [*device_changes(start.changed), *size_changes(start.changed, shapes)]


@dataclass(frozen=True)
class _Search:
    """Tries changes of a job."""

    graphs: Graphs
    shapes: Mapping[str, DecoderShape]

    def fits(self, changed: Changed) -> bool:
        """True if a job fits with the memory choice that needs the least memory."""
        problem = problem_of(changed.job, self.graphs, changed.devices, self.shapes)
        try:
            placed = apply_placement(problem)
            # The last choice needs the least memory; if it does not fit, none does.
            last = memory_choices(problem, placed.strategy.roles, placed.groups)[-1]
            check_feasible(placed, last)
        except (PlanError, ManifestError):
            return False
        return True

    def smallest(self, change: Change, start: Advice) -> Any:
        """The first of a change's values with which a job fits; `NOTHING` if there is none."""

        def fits(value: Any) -> bool:
            return self.fits(change.apply(start.changed, value))

        # The last value needs the least memory: if it does not fit, none does.
        if not change.values or not fits(change.values[-1]):
            return NOTHING
        # Later values need less memory, so all values after the first that fits do, too.
        return change.values[bisect_left(change.values, True, key=fits)]

    def single(self, changes: Iterable[Change], start: Advice) -> list[Advice]:
        """The smallest values of those changes that are enough by themselves."""
        smallest = ((change, self.smallest(change, start)) for change in changes)
        return [start.then(change, value) for change, value in smallest if value is not NOTHING]

    def with_devices(self, start: Advice) -> list[Advice]:
        """More devices together with other changes: for each of these the fewest devices."""
        pieces = []
        for pool, more in enumerate(device_changes(start.changed)):
            if not more.values:
                continue
            # A change that does not help with the most devices helps with no fewer.
            largest = Advice((), more.apply(start.changed, more.values[-1]))
            for change in size_changes(largest.changed, self.shapes):
                both = (start.then(change, value) for value in self._enough(change, largest))
                grown = [
                    (with_change, device_changes(with_change.changed)[pool]) for with_change in both
                ]
                sizes = [
                    (size, with_change.then(devices, size))
                    for with_change, devices in grown
                    if (size := self.smallest(devices, with_change)) is not NOTHING
                ]
                pieces += [min(sizes, key=lambda pair: pair[0])[1]] if sizes else []
        return pieces

    def _enough(self, change: Change, start: Advice) -> Sequence[Any]:
        """Values of a change to try with more devices: each of a few, or the first that fits."""
        if len(change.values) <= FEW_VALUES:
            return change.values
        value = self.smallest(change, start)
        return [] if value is NOTHING else [value]
