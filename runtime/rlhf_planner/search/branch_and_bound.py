"""The fastest plan that fits, by best first search. Pure and deterministic.

Nodes wait in one queue, least bound first: a placement, whose bound is a step in which every call
takes as little as it can on its devices; a beginning of one of its layouts, with some models cut
and some engines sized; and a whole layout. Of these the bounds are of what is left beside the
memory that all others take at least. A layout is judged in full: of the ways to compute that may
fit those whose own bound is below the best plan are fitted and estimated, until one is left. When
the least bound that waits is not below the best plan, that plan is the fastest of the family: it is
optimal there, and as long as nodes wait the least bound says how far it may be.

Source: A* and branch and bound; HybridFlow (arXiv 2409.19256), algorithms 1 and 2, tries all
placements and takes the best strategy of each role by itself; ReaL (arXiv 2406.14088), section 5,
walks at random.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf

from rlhf_api.errors import ManifestError
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.errors import PlanError
from rlhf_planner.bounds.memory import LeastMemory
from rlhf_planner.bounds.time import LeastSeconds
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import evaluate
from rlhf_planner.feasibility import FittedJob, fit_job, place_job
from rlhf_planner.plan_builder import fitted_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.relaxation import Layouts
from rlhf_planner.search.search_space import LayoutSpace
from rlhf_planner.strategies.placements import Placement, placements

MAX_FITTED = 1_000
"""Ways to compute that are fitted into memory before a search ends without a proof: some
seconds."""
PATIENCE = 10
"""So many times as many while nothing that was tried fits."""
MOST_APART = 16
"""Placements with roles apart of which one that fits is told."""
BOUNDED_FOR_EACH = 20
"""So many layouts and beginnings of layouts get bounds at most for each way that may be fitted."""
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
    depth: int
    """Less where more is chosen: of equal bounds what is nearer to a plan comes first."""
    number: int
    """Earlier ones first, so that the order is always the same."""
    placement: Placement = field(compare=False)
    space: LayoutSpace | None = field(compare=False)
    """Its layouts. None: they were not looked at."""
    place: tuple[int, ...] = field(compare=False)
    """Of the first dimensions: which option."""


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
        self._layouts = Layouts(problem, self._least, LeastMemory(problem))
        self._queue: list[_Node] = []
        self._numbers = count()
        self._best: FittedJob | None = None
        self._below_seconds = below_seconds
        self._best_seconds = below_seconds
        """Of the best plan's steps; without one, what they are to be below."""
        self._num_fitted = self._num_bounded = 0
        self._apart: list[tuple[float, int, Placement]] = []
        """Bounds of placements in which not all calls are on the same ranks, their numbers, and
        they; slower ones than the best plan, too."""
        self._unfinished = inf
        """Bound of a layout that could not be judged to its end."""

    def run(self, family: Sequence[Placement], incumbents: Sequence[FittedJob]) -> Found:
        for fitted in incumbents:
            self._judge(fitted)
        for placement in family:
            self._push_placement(placement)
        while self._goes_on():
            node = heapq.heappop(self._queue)
            if node.space is None:
                for space in self._layouts.of(node.placement):
                    self._push(space, ())
            elif len(node.place) < len(node.space.dimensions):
                for number in range(len(node.space.dimensions[len(node.place)].options)):
                    self._push(node.space, (*node.place, number))
            else:
                self._judge_layout(node.space, node.place)
        apart = tuple(self._fitted_apart())
        for fitted in apart:  # a search that ended early may not have come to them
            self._judge(fitted)
        waiting = (node.bound_seconds for node in self._queue[:1])
        bound = min([self._best_seconds, self._unfinished, *waiting])
        seconds = inf if self._best is None else self._best_seconds
        return Found(self._best, seconds, bound, self._num_fitted, len(family), apart)

    def _goes_on(self) -> bool:
        """Whether something that waits may be faster, and may still be tried."""
        return (
            bool(self._queue)
            and self._queue[0].bound_seconds < self._best_seconds
            and self._num_fitted < self._most()
            and self._num_bounded < self._most() * BOUNDED_FOR_EACH
        )

    def _most(self) -> int:
        """Ways to compute that may be fitted: more where nothing fits yet."""
        is_any_wanted = self._best is None and self._below_seconds == inf
        return self._most_fitted * (PATIENCE if is_any_wanted else 1)

    def _push_placement(self, placement: Placement) -> None:
        least = self._layouts.least(placement)
        if least is None:
            return
        bound = self._least.steps.of_step(placement, least)
        self._wait(bound, placement, None, ())
        if _is_apart(placement):
            self._apart.append((bound, len(self._apart), placement))

    def _push(self, space: LayoutSpace, place: tuple[int, ...]) -> None:
        self._num_bounded += 1
        seconds = self._layouts.least_left(space, place)
        if seconds is not None:
            bound = self._least.steps.of_step(space.placement, seconds, space.orders)
            self._wait(bound, space.placement, space, place)

    def _wait(
        self, bound: float, placement: Placement, space: LayoutSpace | None, place: tuple[int, ...]
    ) -> None:
        if bound < self._best_seconds:
            node = _Node(bound, -len(place), next(self._numbers), placement, space, place)
            heapq.heappush(self._queue, node)

    def _judge_layout(self, space: LayoutSpace, place: tuple[int, ...]) -> None:
        """Fit a layout into memory in all ways that may be faster than the best plan."""
        try:
            placed = place_job(self._problem, space.places(place))
        except (PlanError, ManifestError):
            return
        bounded = [
            (self._least.steps.of_step(space.placement, seconds, space.orders), choice)
            for seconds, choice in self._layouts.choices(space, place)
        ]
        for bound, choice in sorted(bounded, key=lambda each: each[0]):
            if bound >= self._best_seconds:
                return
            if self._num_fitted >= self._most():
                self._unfinished = min(self._unfinished, bound)
                return
            self._num_fitted += 1
            with suppress(PlanError):
                self._judge(fit_job(placed, choice))

    def _fitted_apart(self) -> Iterator[FittedJob]:
        """Of the best placements with roles apart one that fits, in a quick layout; none where no
        plan was found, or nobody asks for them."""
        is_wanted = self._problem.fixed.stage_fusion is not StageFusionType.NEVER
        if is_wanted and self._best is not None:
            for _, _, placement in heapq.nsmallest(MOST_APART, self._apart):
                yield from self._first_that_fits(placement)

    def _first_that_fits(self, placement: Placement) -> Iterator[FittedJob]:
        """Of the quickest options of each role; none if they do not fit together."""
        for space in self._layouts.of(placement):
            first = (0,) * len(space.dimensions)
            with suppress(PlanError, ManifestError):
                placed = place_job(self._problem, space.places(first))
                for _, choice in self._layouts.choices(space, first):
                    self._num_fitted += 1
                    yield fit_job(placed, choice)
                    return

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
