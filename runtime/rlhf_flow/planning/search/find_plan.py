"""The fastest plan that fits, by best first search. Pure and deterministic.

Two kinds of nodes wait in one queue, least bound first: a placement, whose bound is a step in which
every call takes as little as it can on its devices; and a layout of it (cuts of models, sizes of
engines), whose bound lets only memory choose. A layout is judged in full: of the ways to compute
within memory those whose own bound is below the best plan are fitted and estimated, until one is
left. When the least bound that waits is not below the best plan, that plan is the fastest of the
family: it is optimal there, and as long as nodes wait the least bound says how far it may be.

A layout leads to those whose one dimension is the next in its order of seconds; their bounds are of
all that may follow, so that none is met too late.

Source: A* and branch and bound; HybridFlow (arXiv 2409.19256), algorithms 1 and 2, tries all
placements and takes the best strategy of each role by itself; ReaL (arXiv 2406.14088), section 5,
walks at random.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations, count
from math import inf
from typing import Any

from rlhf_api.errors import ManifestError
from rlhf_api.plan import OffloadDepth
from rlhf_flow.errors import PlanError
from rlhf_flow.planning.estimate.evaluate import evaluate
from rlhf_flow.planning.fitted_plan import fitted_plan
from rlhf_flow.planning.fitting import FittedJob, PlacedJob, fit_job, place_job
from rlhf_flow.planning.memory_choices import MemoryChoice, memory_choices
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.role_models import role_model
from rlhf_flow.planning.search.layouts import Cut, cuts, engine_tensors, with_layout
from rlhf_flow.planning.search.least_seconds import LeastSeconds, Seconds
from rlhf_flow.planning.search.placements import Placement, placements
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.seconds.links import Links

MAX_FITTED = 2_000
"""Ways to compute that are fitted into memory before a search ends without a proof."""


@dataclass(frozen=True)
class Found:
    """What a search found."""

    fitted: FittedJob | None
    """The fastest that fits. None: nothing fits."""
    step_seconds: float
    """Of its steps; infinite where nothing fits."""
    bound_seconds: float
    """No plan of the family takes less; the same where it is the fastest."""
    num_fitted: int
    """Ways to compute that were fitted into memory."""
    num_placements: int
    """In the family."""

    @property
    def is_optimal(self) -> bool:
        """Whether no plan of the family is faster."""
        return self.bound_seconds >= self.step_seconds

    @property
    def gap(self) -> float:
        """How much faster a plan of the family may be at most, as a share of the bound."""
        return self.step_seconds / self.bound_seconds - 1.0 if self.bound_seconds else inf


@dataclass(frozen=True, order=True)
class _Node:
    """What waits to be looked at."""

    bound_seconds: float
    """Of all that follows from it."""
    number: int
    """Earlier ones first, so that the order is always the same."""
    space: _Layouts = field(compare=False)
    """The layouts of its placement."""
    place: tuple[int, ...] | None = field(compare=False)
    """Of a layout: which of each dimension. None: the placement itself."""


@dataclass(frozen=True)
class _Dimension:
    """One choice of a layout: a role's cut, or the size of its engines."""

    role: str
    choices: tuple[Cut | int, ...]
    """Best first, by the seconds of all calls."""
    seconds: tuple[Seconds, ...]
    """Of the calls that depend on it, for each choice at least."""

    @cached_property
    def least(self) -> tuple[Seconds, ...]:
        """For each choice: of it and of all after it."""
        found: list[Seconds] = [self.seconds[-1]]
        for seconds in self.seconds[-2::-1]:
            found.append({call: min(each, found[-1][call]) for call, each in seconds.items()})
        return tuple(reversed(found))


@dataclass(frozen=True, eq=False)
class _Layouts:
    """All layouts of a placement."""

    placement: Placement
    dimensions: tuple[_Dimension, ...]

    @property
    def is_empty(self) -> bool:
        """Whether some model cannot be cut, or some engine cannot be built there."""
        return any(not dimension.choices for dimension in self.dimensions)

    def least(self, place: Sequence[int]) -> Seconds:
        """Of the calls in a layout and in all that follow from it."""
        parts = zip(self.dimensions, place, strict=True)
        return {
            call: seconds
            for dimension, number in parts
            for call, seconds in dimension.least[number].items()
        }

    def exact(self, place: Sequence[int]) -> Seconds:
        """Of the calls in a layout, as far as memory leaves it open."""
        parts = zip(self.dimensions, place, strict=True)
        return {
            call: seconds
            for dimension, number in parts
            for call, seconds in dimension.seconds[number].items()
        }

    def places(self, place: Sequence[int]) -> Placement:
        """Where roles are in a layout, with models cut and engines sized."""
        cut_of: dict[str, Cut] = {}
        tensor_of: dict[str, int] = {}
        for dimension, number in zip(self.dimensions, place, strict=True):
            chosen = dimension.choices[number]
            if isinstance(chosen, Cut):
                cut_of[dimension.role] = chosen
            else:
                tensor_of[dimension.role] = chosen
        return with_layout(self.placement, cut_of, tensor_of)

    def next(self, place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """The layouts that follow from one: each is reached from one only, as its last dimension
        that is not the first choice is one further."""
        last = max((n for n, number in enumerate(place) if number), default=0)
        for n in range(last, len(place)):
            if place[n] + 1 < len(self.dimensions[n].choices):
                yield (*place[:n], place[n] + 1, *place[n + 1 :])


def find_plan(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    family: Sequence[Placement] | None = None,
    incumbents: Sequence[FittedJob] = (),
    most_fitted: int = MAX_FITTED,
) -> Found:
    """The fastest plan of a family.

    Args:
        problem: what is planned.
        hardware: of the devices of each pool.
        family: the placements. None: all of `placements`.
        incumbents: plans that are known to fit; one of them is the answer where none is faster.
        most_fitted: ways to compute that are fitted into memory, at most.
    """
    family = tuple(placements(problem)) if family is None else family
    return _Search(problem, hardware, most_fitted).run(family, incumbents)


class _Search:
    """The state of a search."""

    def __init__(
        self, problem: PlanningProblem, hardware: Mapping[str, Hardware], most_fitted: int
    ) -> None:
        self._problem, self._hardware, self._most_fitted = problem, hardware, most_fitted
        links = {
            pool.name: Links(hardware[pool.name], pool.devices_per_node) for pool in problem.pools
        }
        self._least = LeastSeconds(problem, links)
        self._pools = {pool.name: pool for pool in problem.pools}
        self._queue: list[_Node] = []
        self._numbers = count()
        self._best: FittedJob | None = None
        self._best_seconds = inf
        self._num_fitted = 0

    def run(self, family: Sequence[Placement], incumbents: Sequence[FittedJob]) -> Found:
        for fitted in incumbents:
            self._judge(fitted)
        for placement in family:
            self._push_placement(placement)
        while self._queue and self._queue[0].bound_seconds < self._best_seconds:
            if self._num_fitted >= self._most_fitted:
                break
            node = heapq.heappop(self._queue)
            if node.place is None:
                self._push(node.space, (0,) * len(node.space.dimensions))
            else:
                for place in node.space.next(node.place):
                    self._push(node.space, place)
                self._judge_layout(node.space, node.place)
        bound = min([self._best_seconds, *(node.bound_seconds for node in self._queue[:1])])
        return Found(self._best, self._best_seconds, bound, self._num_fitted, len(family))

    def _push_placement(self, placement: Placement) -> None:
        space = _Layouts(placement, self._dimensions(placement))
        if not space.is_empty:
            self._push(space, None)

    def _push(self, space: _Layouts, place: tuple[int, ...] | None) -> None:
        least = space.least(place or (0,) * len(space.dimensions))
        bound = self._least.of_step(space.placement, least)
        if bound < self._best_seconds:
            heapq.heappush(self._queue, _Node(bound, next(self._numbers), space, place))

    def _dimensions(self, placement: Placement) -> tuple[_Dimension, ...]:
        found = []
        for role, facts in self._problem.models.items():
            place = placement[role]
            pool = self._pools[place.training.mesh.pool]
            found.append(
                _dimension(
                    role,
                    cuts(facts, place.training, pool),
                    lambda cut, role=role, mesh=place.training.mesh: self._least.of_model(
                        role, mesh, cut
                    ),
                )
            )
            if facts.generates:
                found.append(
                    _dimension(
                        role,
                        engine_tensors(self._problem, facts, place.generation, pool),
                        lambda size, role=role, mesh=place.generation.mesh: self._least.of_engines(
                            role, mesh, size
                        ),
                    )
                )
        return tuple(found)

    def _judge_layout(self, space: _Layouts, place: tuple[int, ...]) -> None:
        """Fit a layout into memory in all ways that may be faster than the best plan."""
        try:
            placed = place_job(self._problem, space.places(place))
        except (PlanError, ManifestError):
            return
        seconds = space.exact(place)
        failed: list[MemoryChoice] = []
        for bound, choice in self._choices(space, placed, seconds):
            if bound >= self._best_seconds or self._num_fitted >= self._most_fitted:
                return
            if any(_needs_as_much(choice, other) for other in failed):
                continue
            self._num_fitted += 1
            try:
                fitted = fit_job(placed, choice)
            except PlanError:
                failed.append(choice)
                continue
            self._judge(fitted)

    def _choices(
        self, space: _Layouts, placed: PlacedJob, seconds: Seconds
    ) -> list[tuple[float, MemoryChoice]]:
        """The ways to compute in a layout, with their bounds, best first; none if even that which
        takes least memory does not fit."""
        choices = list(_all_choices(self._problem, placed))
        self._num_fitted += 1
        try:
            fit_job(placed, choices[-1])
        except PlanError:
            return []
        bounded = [
            (
                self._least.of_step(space.placement, {**seconds, **self._computed(placed, each)}),
                each,
            )
            for each in choices
        ]
        return sorted(bounded, key=lambda each: each[0])

    def _computed(self, placed: PlacedJob, choice: MemoryChoice) -> Seconds:
        """Seconds of calls that train roles or run them forward, as a choice has them computed."""
        found: dict[str, float] = {}
        for role, facts in self._problem.models.items():
            model = role_model(
                self._problem,
                facts,
                placed.meshes[role],
                choice.micro_batch_tokens,
                role in choice.recomputed,
            )
            found |= self._least.of_role(model)
        return found

    def _judge(self, fitted: FittedJob) -> None:
        """Take a plan if it is the fastest so far."""
        plan = fitted_plan(fitted)
        seconds = evaluate(self._problem, plan, self._hardware).step_seconds
        if seconds < self._best_seconds:
            self._best, self._best_seconds = fitted, seconds


def _dimension(
    role: str, choices: Sequence[Cut] | Sequence[int], seconds_of: Callable[[Any], Seconds | None]
) -> _Dimension:
    """A dimension with its choices in the order of their seconds."""
    priced = [
        (choice, seconds) for choice in choices if (seconds := seconds_of(choice)) is not None
    ]
    priced.sort(key=lambda each: sum(each[1].values()))
    return _Dimension(role, tuple(each for each, _ in priced), tuple(each for _, each in priced))


def _all_choices(problem: PlanningProblem, placed: PlacedJob) -> Iterator[MemoryChoice]:
    """All ways to compute: those of `memory_choices`, with each set of roles recomputing that may;
    that which takes least memory is last."""
    choices = memory_choices(problem, placed.groups)
    most = max(len(choice.chosen_to_recompute) for choice in choices)
    for choice in choices:
        may = sorted(choice.chosen_to_recompute)
        if len(may) == most:
            for chosen in chain(*(combinations(may, size) for size in range(most + 1))):
                yield replace(choice, recomputed=choice.told_to_recompute | {*chosen})


def _needs_as_much(one: MemoryChoice, other: MemoryChoice) -> bool:
    """Whether a way to compute takes no less memory than another."""
    return (
        one.micro_batch_tokens >= other.micro_batch_tokens
        and one.recomputed <= other.recomputed
        and all(
            _DEPTHS.index(one.offload.depth_of(role)) <= _DEPTHS.index(other.offload.depth_of(role))
            for role in one.offload.roles | other.offload.roles
        )
    )


_DEPTHS = tuple(OffloadDepth)
"""Least first."""
