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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf

from rlhf_api.errors import ManifestError
from rlhf_flow.errors import PlanError
from rlhf_flow.planning.estimate.evaluate import evaluate
from rlhf_flow.planning.fitted_plan import fitted_plan
from rlhf_flow.planning.fitting import FittedJob, PlacedJob, fit_job, place_job
from rlhf_flow.planning.memory_choices import MemoryChoice
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.layout_space import Dimension, LayoutSpace, dimension
from rlhf_flow.planning.search.layouts import cuts, engine_tensors
from rlhf_flow.planning.search.least_seconds import LeastSeconds, Seconds
from rlhf_flow.planning.search.memory_ways import all_choices, needs_as_much
from rlhf_flow.planning.search.placements import Placement, placements
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.seconds.links import Links

MAX_FITTED = 1_000
"""Ways to compute that are fitted into memory before a search ends without a proof: some
seconds."""
PATIENCE = 10
"""So many times as many while nothing that was tried fits."""
MOST_APART = 16
"""Placements with roles apart of which one that fits is told."""
WITHOUT_END = 10**9
"""So many are never reached: the search ends with a proof."""


@dataclass(frozen=True)
class Found:
    """What a search found."""

    fitted: FittedJob | None
    """The fastest that fits. None: nothing fits, or nothing that is as fast as was asked for."""
    step_seconds: float
    """Of its steps; infinite without one."""
    bound_seconds: float
    """No plan of the family takes less; the same where it is the fastest."""
    num_fitted: int
    """Ways to compute that were fitted into memory."""
    num_placements: int
    """In the family."""
    apart: tuple[FittedJob, ...] = ()
    """Of the placements with the least bounds in which not all calls are on the same ranks one that
    fits, for whoever judges by more than the search."""

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
    space: LayoutSpace = field(compare=False)
    """The layouts of its placement."""
    place: tuple[int, ...] | None = field(compare=False)
    """Of a layout: which of each dimension. None: the placement itself."""


def find_plan(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    family: Sequence[Placement] | None = None,
    incumbents: Sequence[FittedJob] = (),
    most_fitted: int = MAX_FITTED,
    below_seconds: float = inf,
) -> Found:
    """The fastest plan of a family.

    Args:
        problem: what is planned.
        hardware: of the devices of each pool.
        family: the placements. None: all of `placements`.
        incumbents: plans that are known to fit; one of them is the answer where none is faster.
        most_fitted: ways to compute that are fitted into memory, at most.
        below_seconds: only plans with shorter steps are looked for.
    """
    family = tuple(placements(problem)) if family is None else family
    return _Search(problem, hardware, most_fitted, below_seconds).run(family, incumbents)


class _Search:
    """The state of a search."""

    def __init__(
        self,
        problem: PlanningProblem,
        hardware: Mapping[str, Hardware],
        most_fitted: int,
        below_seconds: float,
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
        self._below_seconds = below_seconds
        self._best_seconds = below_seconds
        """Of the best plan's steps; without one, what they are to be below."""
        self._num_fitted = 0
        self._apart: list[_Node] = []
        """Placements in which not all calls are on the same ranks; slower ones than the best plan,
        too."""
        self._unfinished = inf
        """Bound of a layout that could not be judged to its end."""

    def run(self, family: Sequence[Placement], incumbents: Sequence[FittedJob]) -> Found:
        for fitted in incumbents:
            self._judge(fitted)
        for placement in family:
            self._push_placement(placement)
        while self._goes_on():
            node = heapq.heappop(self._queue)
            if node.place is None:
                self._push(node.space, (0,) * len(node.space.dimensions))
            else:
                for place in node.space.next(node.place):
                    self._push(node.space, place)
                self._judge_layout(node.space, node.place)
        waiting = (node.bound_seconds for node in self._queue[:1])
        bound = min([self._best_seconds, self._unfinished, *waiting])
        seconds = inf if self._best is None else self._best_seconds
        number, apart = self._num_fitted, tuple(self._fitted_apart())
        return Found(self._best, seconds, bound, number, len(family), apart)

    def _goes_on(self) -> bool:
        """Whether something that waits may be faster, and may still be tried."""
        return (
            bool(self._queue)
            and self._queue[0].bound_seconds < self._best_seconds
            and self._num_fitted < self._most()
        )

    def _most(self) -> int:
        """Ways to compute that may be fitted: more where nothing fits yet."""
        is_any_wanted = self._best is None and self._below_seconds == inf
        return self._most_fitted * (PATIENCE if is_any_wanted else 1)

    def _push_placement(self, placement: Placement) -> None:
        space = LayoutSpace(placement, self._dimensions(placement))
        if space.is_empty:
            return
        node = self._push(space, None)
        if _is_apart(placement):
            self._apart.append(node)

    def _push(self, space: LayoutSpace, place: tuple[int, ...] | None) -> _Node:
        """Let a node wait if it may be faster than the best plan."""
        least = space.least(place or (0,) * len(space.dimensions))
        bound = self._least.of_step(space.placement, least)
        node = _Node(bound, next(self._numbers), space, place)
        if bound < self._best_seconds:
            heapq.heappush(self._queue, node)
        return node

    def _dimensions(self, placement: Placement) -> tuple[Dimension, ...]:
        found = []
        for role, facts in self._problem.models.items():
            place, least = placement[role], self._least
            pool = self._pools[place.training.mesh.pool]
            seconds = partial(least.of_model, role, place.training.mesh)
            found.append(dimension(role, cuts(facts, place.training, pool), seconds))
            if facts.generates:
                sizes = engine_tensors(self._problem, facts, place.generation, pool)
                generating = partial(least.of_engines, role, place.generation.mesh)
                found.append(dimension(role, sizes, generating))
        return tuple(found)

    def _judge_layout(self, space: LayoutSpace, place: tuple[int, ...]) -> None:
        """Fit a layout into memory in all ways that may be faster than the best plan."""
        try:
            placed = place_job(self._problem, space.places(place))
        except (PlanError, ManifestError):
            return
        seconds = space.exact(place)
        failed: list[MemoryChoice] = []
        for bound, choice in self._choices(space, placed, seconds):
            if bound >= self._best_seconds:
                return
            if self._num_fitted >= self._most():
                self._unfinished = bound
                return
            if any(needs_as_much(choice, other) for other in failed):
                continue
            self._num_fitted += 1
            try:
                fitted = fit_job(placed, choice)
            except PlanError:
                failed.append(choice)
                continue
            self._judge(fitted)

    def _fitted_apart(self) -> Iterator[FittedJob]:
        """Of the best placements with roles apart one that fits, in the quickest layout; none where
        no plan was found."""
        if self._best is None:
            return
        for node in heapq.nsmallest(MOST_APART, self._apart):
            first = (0,) * len(node.space.dimensions)
            try:
                placed = place_job(self._problem, node.space.places(first))
            except (PlanError, ManifestError):
                continue
            choices = self._choices(node.space, placed, node.space.exact(first))
            fitted = self._first_that_fits(placed, [choice for _, choice in choices])
            if fitted is not None:
                yield fitted

    def _first_that_fits(
        self, placed: PlacedJob, choices: Sequence[MemoryChoice]
    ) -> FittedJob | None:
        failed: list[MemoryChoice] = []
        for choice in choices:
            if not any(needs_as_much(choice, other) for other in failed):
                try:
                    return fit_job(placed, choice)
                except PlanError:
                    failed.append(choice)
        return None

    def _choices(
        self, space: LayoutSpace, placed: PlacedJob, seconds: Seconds
    ) -> list[tuple[float, MemoryChoice]]:
        """The ways to compute in a layout, with their bounds, best first; none if even that which
        takes least memory does not fit."""
        choices = list(all_choices(placed))
        self._num_fitted += 1
        try:
            fit_job(placed, choices[-1])
        except PlanError:
            return []
        bounds: dict[tuple[int, frozenset[str]], float] = {}
        for choice in choices:
            way = choice.micro_batch_tokens, choice.recomputed
            if way not in bounds:
                computed = self._least.of_choice(placed.meshes, *way)
                bounds[way] = self._least.of_step(space.placement, {**seconds, **computed})
        bounded = [
            (bounds[choice.micro_batch_tokens, choice.recomputed], choice) for choice in choices
        ]
        return sorted(bounded, key=lambda each: each[0])

    def _judge(self, fitted: FittedJob) -> None:
        """Take a plan if it is the fastest so far."""
        plan = fitted_plan(fitted)
        seconds = evaluate(self._problem, plan, self._hardware).step_seconds
        if seconds < self._best_seconds:
            self._best, self._best_seconds = fitted, seconds


def _is_apart(placement: Placement) -> bool:
    """Whether not all calls are on the same ranks."""
    meshes = [mesh for p in placement.values() for mesh in (p.training.mesh, p.generation.mesh)]
    return len({(mesh.pool, mesh.ranks) for mesh in meshes}) > 1
