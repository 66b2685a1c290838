"""The layouts of placements, and what their calls take at least within memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlhf_api.plan import Mesh, Pool
from rlhf_flow.planning.fitting import PlacedJob
from rlhf_flow.planning.memory_choices import MemoryChoice
from rlhf_flow.planning.placement import RolePlace
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.layout_space import (
    Dimension,
    LayoutSpace,
    Option,
    Way,
    option,
)
from rlhf_flow.planning.search.layouts import Cut, cuts, engine_tensors
from rlhf_flow.planning.search.least_memory import Cells, LeastMemory, Room, room_of, uncut
from rlhf_flow.planning.search.least_seconds import NONE, Calls, LeastSeconds, Seconds
from rlhf_flow.planning.search.placements import Placement

CACHE_STEP_BYTES = 2**27
"""Caches of engines are rounded up to multiples of this, so that few different ones are priced."""


@dataclass(frozen=True, eq=False)
class Layouts:
    """Of one problem."""

    problem: PlanningProblem
    """What is planned."""
    seconds: LeastSeconds
    """What calls take at least."""
    memory: LeastMemory
    """What roles hold at least."""

    @cached_property
    def _pools(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self.problem.pools}

    def least(self, placement: Placement) -> Seconds | None:
        """What calls take in a placement at least, each role as if it were alone. None: some model
        cannot be cut there, or some engine cannot be built."""
        found: dict[str, float] = {}
        for role, place in placement.items():
            mesh = place.training.mesh
            of_cuts = [self.seconds.of_model(role, mesh, cut) for cut in self._cuts(role, place)]
            parts = [of_cuts]
            if self.problem.models[role].generates:
                engines = place.generation.mesh
                sizes = self._engine_sizes(role, place)
                parts.append(
                    [self.seconds.of_engines(role, engines, size, None, NONE) for size in sizes]
                )
            for part in parts:
                known = [each for each in part if each is not None]
                if not known:
                    return None
                for call in known[0]:
                    found[call] = min(each[call] for each in known)
        return found

    def of(self, placement: Placement) -> LayoutSpace | None:
        """The layouts of a placement that may fit. None: there are none."""
        every = self.every(placement)
        return None if every is None else every.narrowed()

    def every(self, placement: Placement) -> LayoutSpace | None:
        """The layouts of a placement, whether they fit or not. None: some model cannot be cut
        there, or some engine cannot be built."""
        room = room_of(self.problem, placement)
        crossing = self.seconds.crossing(placement)
        dimensions = tuple(self._dimensions(placement, room, crossing))
        if not all(dimension.options for dimension in dimensions):
            return None
        return LayoutSpace(placement, dimensions, room, crossing)

    def least_left(self, space: LayoutSpace, place: tuple[int, ...]) -> Seconds | None:
        """What calls take at least when options of the first dimensions are chosen. None: nothing
        fits then.

        Args:
            space: the layouts of a placement.
            place: which options.
        """
        left = space.left(place)
        if left is None:
            return None
        found: dict[str, float] = {}
        for dimension, options, beside in zip(space.dimensions, *left, strict=True):
            known = [
                self._engine_seconds(space, dimension.role, each, beside)
                if dimension.is_engines
                else each.seconds
                for each in options
            ]
            for call in known[0]:
                found[call] = min(each[call] for each in known)
        return found | self._of_reshards(space, left.options)

    def _of_reshards(
        self, space: LayoutSpace, options: Sequence[tuple[Option, ...]]
    ) -> dict[str, float]:
        """Of roles for which no cut and no size of engines but one are left."""
        found: dict[str, float] = {}
        cut_of: dict[str, Cut] = {}
        for dimension, (first, *others) in zip(space.dimensions, options, strict=True):
            if isinstance(first.choice, Cut):
                if not others:
                    cut_of[dimension.role] = first.choice
            elif not others and (cut := cut_of.get(dimension.role)):
                where = uncut(space.placement[dimension.role])
                found |= self.seconds.of_reshards(dimension.role, where, cut, first.choice)
        return found

    def of_choice(
        self, space: LayoutSpace, place: tuple[int, ...], placed: PlacedJob, choice: MemoryChoice
    ) -> Seconds | None:
        """What calls take at least in a layout, computed in one way. None: that does not fit.

        Args:
            space: the layouts of a placement.
            place: which options of all dimensions.
            placed: the job in this layout.
            choice: how it computes.
        """
        chosen = [d.options[at] for d, at in zip(space.dimensions, place, strict=True)]
        room, beside = space.room, list(space.room.spare)
        found: dict[str, float] = {}
        for role, mesh in placed.meshes.items():
            held = self.memory.of_role(
                role,
                mesh,
                choice.micro_batch_tokens,
                role in choice.recomputed,
                choice.offload.depth_of(role),
            )
            beside = [b - h for b, h in zip(beside, room.of_role(role, held), strict=True)]
        engines = [
            (d.role, each) for d, each in zip(space.dimensions, chosen, strict=True) if d.is_engines
        ]
        for _, each in engines:
            beside = [b - h for b, h in zip(beside, each.least, strict=True)]
        if min(beside) < 0:
            return None
        found |= self.seconds.of_choice(
            placed.meshes, choice.micro_batch_tokens, choice.recomputed, space.crossing
        )
        found |= self._of_reshards(space, [(each,) for each in chosen])
        for role, each in engines:
            own = tuple(b + h for b, h in zip(beside, each.least, strict=True))
            found |= self._engine_seconds(space, role, each, own)
        return found

    def _dimensions(
        self, placement: Placement, room: Room, crossing: Mapping[str, Calls]
    ) -> Iterator[Dimension]:
        for role, place in placement.items():
            mesh = place.training.mesh
            yield Dimension(
                role,
                tuple(
                    option(cut, ways)
                    for cut in self._cuts(role, place)
                    if (ways := self._ways(role, mesh, cut, room, crossing[role]))
                ),
            )
            if self.problem.models[role].generates:
                yield Dimension(
                    role, tuple(self._engines(role, place, room, crossing[role])), is_engines=True
                )

    def _ways(self, role: str, mesh: Mesh, cut: Cut, room: Room, crossing: Calls) -> list[Way]:
        depth = room.depths[role]
        return [
            Way(
                way.seconds,
                room.of_role(
                    role,
                    self.memory.of_role(
                        role,
                        way.model.mesh,
                        way.model.micro_batch_tokens,
                        way.model.recompute,
                        depth,
                    ),
                ),
            )
            for way in self.seconds.ways(role, mesh, cut, crossing)
        ]

    def _engines(
        self, role: str, place: RolePlace, room: Room, crossing: Calls
    ) -> Iterator[Option]:
        where = uncut(place)
        for size in self._engine_sizes(role, place):
            seconds = self.seconds.of_engines(role, where.generation.mesh, size, None, crossing)
            if seconds is not None:
                cache = self.memory.least_cache(role, where, size)
                held = room.of_engines(role, self.memory.of_engines(role, where, size), cache)
                yield option(size, [Way(seconds, held)])

    def _engine_seconds(
        self, space: LayoutSpace, role: str, engines: Option, beside: Cells
    ) -> Seconds:
        """Of calls that generate, with as large a cache as there is room for."""
        where, tensor = uncut(space.placement[role]), engines.choice
        assert isinstance(tensor, int)
        least = self.memory.least_cache(role, where, tensor)
        spare = min(beside[cell] - engines.least[cell] for cell in space.room.caches_of(role))
        rounded = -(-(least + spare) // CACHE_STEP_BYTES) * CACHE_STEP_BYTES
        cache = min(self.memory.most_cache(role, where, tensor), rounded)
        found = self.seconds.of_engines(
            role, where.generation.mesh, tensor, cache, space.crossing[role]
        )
        assert found is not None
        return found

    def _cuts(self, role: str, place: RolePlace) -> tuple[Cut, ...]:
        pool = self._pools[place.training.mesh.pool]
        return cuts(self.problem.models[role], place.training, pool)

    def _engine_sizes(self, role: str, place: RolePlace) -> tuple[int, ...]:
        pool = self._pools[place.generation.mesh.pool]
        return engine_tensors(self.problem, self.problem.models[role], place.generation, pool)
