"""The layouts of placements, and what their calls take at least within memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from rlhf_api.plan import Mesh, Pool
from rlhf_planner.bounds.memory import Cells, LeastMemory, Room, room_of, uncut
from rlhf_planner.bounds.step import Seconds
from rlhf_planner.bounds.time import NONE, Calls, LeastSeconds, RoleWay
from rlhf_planner.memory.choices import MemoryChoice, told_to_recompute
from rlhf_planner.memory.items import RoleModel
from rlhf_planner.memory.offloading import offload_choices
from rlhf_planner.placement.placement import RolePlace, device_groups
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.search_space import (
    Dimension,
    LayoutSpace,
    Option,
    Way,
    fits,
    least_cells,
    option,
    room_beside,
)
from rlhf_planner.strategies.parallelism import Cut, cuts, engine_tensors
from rlhf_planner.strategies.placements import Placement

HeldWay = tuple[RoleWay, Cells]
"""A way to compute with a role, and what it takes of a placement's room."""

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

    def of(self, placement: Placement) -> Iterator[LayoutSpace]:
        """The layouts of a placement that may fit, for each way to offload roles there."""
        for every in self.every(placement):
            narrowed = every.narrowed()
            if narrowed is not None:
                yield narrowed

    def every(self, placement: Placement) -> Iterator[LayoutSpace]:
        """The layouts of a placement, whether they fit or not; none if some model cannot be cut
        there, or some engine cannot be built."""
        crossing = self.seconds.crossing(placement)
        groups = device_groups(self.problem.pools, placement)
        for offload in offload_choices(self.problem, groups):
            room = room_of(self.problem, groups, offload)
            dimensions = tuple(self._dimensions(placement, room, crossing))
            if all(dimension.options for dimension in dimensions):
                roles = offload.roles
                orders = self.seconds.steps.orders(placement, roles) if roles else ()
                yield LayoutSpace(placement, dimensions, room, crossing, orders)

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

    def choices(
        self, space: LayoutSpace, place: tuple[int, ...]
    ) -> Iterator[tuple[Seconds, MemoryChoice]]:
        """The ways to compute in a layout that may fit and be the fastest, with what calls take at
        least. A way to compute with a role that takes no less time and no less memory than another
        of it is left out.

        Args:
            space: the layouts of a placement.
            place: which options of all dimensions.
        """
        ways = self.role_ways(space, place)
        least = [least_cells([held for _, held in each]) for each in ways]
        engines = [each.least for _, each in _engines_of(space, place)]
        beside = room_beside(space.room.spare, [*least, *engines])[: len(least)]
        for chosen in product(*map(_best, ways, beside)):
            seconds = self.of_ways(space, place, chosen)
            if seconds is not None:
                yield seconds, self.memory_choice(space, chosen)

    def of_ways(
        self, space: LayoutSpace, place: tuple[int, ...], ways: Sequence[HeldWay]
    ) -> Seconds | None:
        """What calls take at least with one way for each role. None: that does not fit."""
        engines = _engines_of(space, place)
        held = [*(held for _, held in ways), *(each.least for _, each in engines)]
        beside = room_beside(space.room.spare, held)
        if not fits(held[0], beside[0]):
            return None
        found = {call: each for way, _ in ways for call, each in way.seconds.items()}
        for way, _ in ways:
            found |= self._moves(way.model, space.room)
        chosen = [d.options[at] for d, at in zip(space.dimensions, place, strict=True)]
        found |= self._of_reshards(space, [(each,) for each in chosen])
        for (role, each), own in zip(engines, beside[len(ways) :], strict=True):
            found |= self._engine_seconds(space, role, each, own)
        return found

    def role_ways(self, space: LayoutSpace, place: tuple[int, ...]) -> list[list[HeldWay]]:
        """All ways to compute with each role in a layout."""
        found = []
        for dimension, at in zip(space.dimensions, place, strict=True):
            cut, role = dimension.options[at].choice, dimension.role
            if isinstance(cut, Cut):
                mesh = space.placement[role].training.mesh
                ways = self.seconds.ways(role, mesh, cut, space.crossing[role])
                found.append([(way, self._held(way.model, space.room)) for way in ways])
        return found

    def memory_choice(self, space: LayoutSpace, ways: Sequence[HeldWay]) -> MemoryChoice:
        """One way for each role, as plans are made from it."""
        models = [way.model for way, _ in ways]
        return MemoryChoice(
            micro_batch_tokens={model.role: model.micro_batch_tokens for model in models},
            recomputed=frozenset(
                model.role for model in models if model.is_trained and model.recompute
            ),
            told_to_recompute=told_to_recompute(self.problem),
            offload=space.room.offload,
        )

    def _held(self, model: RoleModel, room: Room) -> Cells:
        depth, tokens = room.offload.depth_of(model.role), model.micro_batch_tokens
        held = self.memory.of_role(model.role, model.mesh, tokens, model.recompute, depth)
        return room.of_role(model.role, held)

    def _moves(self, model: RoleModel, room: Room) -> Seconds:
        return self.seconds.moves(model, room.offload.depth_of(model.role))

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
        return [
            Way({**way.seconds, **self._moves(way.model, room)}, self._held(way.model, room))
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


def _engines_of(space: LayoutSpace, place: tuple[int, ...]) -> list[tuple[str, Option]]:
    """The engines of each role in a layout."""
    chosen = zip(space.dimensions, place, strict=True)
    return [(each.role, each.options[at]) for each, at in chosen if each.is_engines]


def _best(ways: Sequence[HeldWay], beside: Cells) -> list[HeldWay]:
    """The ways that fit beside the least of all others, and of which no other takes as little time
    and memory."""
    fitting = [each for each in ways if fits(each[1], beside)]
    kept: list[HeldWay] = []
    for each in sorted(fitting, key=lambda each: (sum(each[0].seconds.values()), sum(each[1]))):
        if not any(_is_no_worse(other, each) for other in kept):
            kept.append(each)
    return kept


def _is_no_worse(one: HeldWay, other: HeldWay) -> bool:
    (way, held), (other_way, other_held) = one, other
    return fits(held, other_held) and all(
        seconds <= other_way.seconds[call] for call, seconds in way.seconds.items()
    )
