"""The layouts of a placement, with lower bounds of their times and memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add, le, sub
from typing import NamedTuple

from rlhf_planner.bounds.calls import Calls
from rlhf_planner.bounds.memory import BytesPerPhase, Capacity
from rlhf_planner.bounds.step import Order, Seconds
from rlhf_planner.strategies.parallelism import Cut, with_layout
from rlhf_planner.strategies.placements import Placement


class ComputeConfig(NamedTuple):
    """A way to compute with a cut: micro-batch size and recomputation."""

    seconds: Seconds
    """Lower bounds of the calls that depend on it."""
    memory: BytesPerPhase
    """Bytes of the placement's capacity that it uses."""


@dataclass(frozen=True)
class Option:
    """A cut of a model, or a size of engines."""

    choice: Cut | int
    configs: tuple[ComputeConfig, ...]
    """Ways to compute with it."""
    min_bytes: BytesPerPhase
    """Elementwise minimum of the configs' bytes."""

    @cached_property
    def seconds(self) -> Seconds:
        """Lower bound of each of its calls."""
        return _min_seconds([config.seconds for config in self.configs])


def make_option(choice: Cut | int, configs: Sequence[ComputeConfig]) -> Option:
    """Build an option from at least one config."""
    return Option(choice, tuple(configs), min_bytes_of([config.memory for config in configs]))


@dataclass(frozen=True)
class Dimension:
    """One choice of a layout: a role's cut, or the size of its engines."""

    role: str
    options: tuple[Option, ...]
    """Quickest first, by the sum over all calls."""
    is_engines: bool = False
    """True for a size of engines, False for a cut."""


class ResidualDomains(NamedTuple):
    """The options that remain when the first dimensions are assigned."""

    options: tuple[tuple[Option, ...], ...]
    """Options still feasible per dimension; exactly one where already assigned."""
    residual: tuple[BytesPerPhase, ...]
    """Per dimension: capacity minus the minimum of all others."""


@dataclass(frozen=True, eq=False)
class LayoutSpace:
    """All layouts of a placement: a cut of each model and a size of each role's engines."""

    placement: Placement
    dimensions: tuple[Dimension, ...]
    capacity: Capacity
    """Memory of its devices, without what every process needs."""
    crossing: Mapping[str, Calls]
    """Per role, the calls whose columns come from other nodes."""
    orders: tuple[Order, ...]
    """Possible orders of a step's calls, with loads and offloads. Empty: no role leaves its
    devices."""

    def propagate(self, assignment: Sequence[int]) -> ResidualDomains | None:
        """Propagate an assignment of the first dimensions. None: no complete layout is feasible.

        An option is removed if it does not fit next to the minimum of all other dimensions.
        """
        options = [
            (dimension.options[assignment[number]],)
            if number < len(assignment)
            else dimension.options
            for number, dimension in enumerate(self.dimensions)
        ]
        # A removal may raise the minimum of its own dimension and so exclude options of others. It
        # repeats until nothing changes.
        while True:
            minimums = [
                min_bytes_of([option.min_bytes for option in options_left])
                for options_left in options
            ]
            residual = residual_bytes(self.capacity.spare, minimums)
            kept = [
                tuple(option for option in options_left if fits(option.min_bytes, free))
                for options_left, free in zip(options, residual, strict=True)
            ]
            if not all(kept):
                return None
            # Nothing was removed, so another round would change nothing.
            if all(len(new) == len(old) for new, old in zip(kept, options, strict=True)):
                return ResidualDomains(tuple(options), tuple(residual))
            options = kept

    def pruned(self) -> LayoutSpace | None:
        """The space without options and configs that are infeasible in every layout; quickest
        options first. None: no layout is feasible."""
        domains = self.propagate(())
        if domains is None:
            return None
        dimensions = []
        for dimension, options, residual in zip(self.dimensions, *domains, strict=True):
            configs = [
                [config for config in option.configs if fits(config.memory, residual)]
                for option in options
            ]
            # A minimum combines the memory of several configs. An option stays only if one config
            # fits.
            fitting = [
                make_option(option.choice, option_configs)
                for option, option_configs in zip(options, configs, strict=True)
                if option_configs
            ]
            if not fitting:
                return None
            # Of nodes with equal bounds the search expands those of earlier options first.
            fitting.sort(key=lambda option: sum(option.seconds.values()))
            dimensions.append(replace(dimension, options=tuple(fitting)))
        return replace(self, dimensions=tuple(dimensions))

    def placement_of(self, assignment: Sequence[int]) -> Placement:
        """The placement of a complete assignment, with models cut and engines sized."""
        cut_of: dict[str, Cut] = {}
        tensor_of: dict[str, int] = {}
        for dimension, number in zip(self.dimensions, assignment, strict=True):
            chosen = dimension.options[number].choice
            if isinstance(chosen, Cut):
                cut_of[dimension.role] = chosen
            else:
                tensor_of[dimension.role] = chosen
        return with_layout(self.placement, cut_of, tensor_of)


def _min_seconds(bounds: Sequence[Seconds]) -> Seconds:
    """Minimum per call."""
    first, *others = bounds
    return {call: min([seconds, *(o[call] for o in others)]) for call, seconds in first.items()}


def min_bytes_of(bounds: Sequence[BytesPerPhase]) -> BytesPerPhase:
    """Elementwise minimum."""
    return bounds[0] if len(bounds) == 1 else tuple(map(min, *bounds))


def residual_bytes(spare: BytesPerPhase, items: Sequence[BytesPerPhase]) -> list[BytesPerPhase]:
    """For each item: capacity minus the other items."""
    # One total and one addition per item: linear in the number of items.
    total = spare
    for cells in items:
        total = tuple(map(sub, total, cells))
    return [tuple(map(add, total, cells)) for cells in items]


def fits(memory: BytesPerPhase, capacity: BytesPerPhase) -> bool:
    """True if no cell exceeds its capacity."""
    return all(map(le, memory, capacity))
