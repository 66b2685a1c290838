"""The fastest feasible plan, by best-first branch and bound. Pure and deterministic.

Nodes wait in one queue, lowest bound first. A node is a placement, bounded by a step in which every
call takes its minimum on its devices, or a partial strategy, bounded within the memory left after
every other role's minimum. It branches into the candidates of one role; a complete strategy is
checked against memory and estimated. When the lowest bound of the queue is not below the incumbent,
the incumbent is optimal in the family. As long as nodes wait, that bound limits the optimality gap.

Source: A* and branch and bound; HybridFlow (arXiv 2409.19256), algorithms 1 and 2, tries all
placements and takes the best strategy of each role by itself; ReaL (arXiv 2406.14088), section 5,
walks at random.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf

from rlhf_api.errors import ManifestError
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.errors import PlanError
from rlhf_planner.bounds.calls import CallTimeBounds
from rlhf_planner.bounds.memory import MemoryBounds
from rlhf_planner.candidates.placements import placements
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import evaluate
from rlhf_planner.feasibility import FeasibleJob, apply_placement, check_feasible
from rlhf_planner.placement.strategy import JobStrategy
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.node_bounds import Relaxation
from rlhf_planner.search.search_space import SearchSpace

# Strategies checked against memory before a search ends without a proof: some seconds.
MAX_CANDIDATES = 1_000
# Factor on MAX_CANDIDATES while no candidate is feasible.
INFEASIBLE_FACTOR = 10
# Number of split placements that contribute a feasible plan to the result.
MAX_SPLIT_PLACEMENTS = 16
# Cap on bounded nodes, as a multiple of the cap on candidates.
MAX_NODES_PER_CANDIDATE = 20
# A limit that no search reaches, so that it ends with a proof.
UNLIMITED = 10**9


@dataclass(frozen=True)
class LazyFamily:
    """Placements that are listed only if one of them may be faster than the incumbent."""

    bound_seconds: Callable[[], float]
    """Returns a lower bound on their steps."""
    placements: Callable[[float], Iterable[JobStrategy]]
    """Returns the placements; those with longer steps than a number of seconds may be missing."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    fitted: FeasibleJob | None
    """The incumbent. None: no plan is feasible, or none is below the requested step time."""
    step_seconds: float
    """Step time of the incumbent; infinite without one."""
    bound_seconds: float
    """Lower bound on every plan of the family; equal to `step_seconds` if the plan is optimal."""
    num_candidates: int
    """Complete strategies that were checked against memory."""
    num_placements: int
    """Placements in the family."""
    split: tuple[FeasibleJob, ...] = ()
    """One feasible job each of the split placements with the lowest bounds. A placement is split if
    its calls run on different ranks."""

    @property
    def is_optimal(self) -> bool:
        """True if no plan of the family is faster."""
        return self.bound_seconds >= self.step_seconds

    @property
    def gap(self) -> float:
        """Upper bound on the speed-up that is still possible, relative to the bound."""
        return self.step_seconds / self.bound_seconds - 1.0 if self.bound_seconds else inf


@dataclass(frozen=True, order=True)
class _Node:
    """A node of the search tree."""

    # Lower bound on all plans below the node.
    bound_seconds: float
    # Negative depth in the tree: of nodes with equal bounds the deepest is popped first, as it is
    # nearest to a plan.
    depth: int
    # Sequence number: makes the order total, so that every run pops the same nodes.
    number: int
    placement: JobStrategy = field(compare=False)
    # The strategies below the node. None: all of the placement, not expanded.
    space: SearchSpace | None = field(compare=False)


def find_plan(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    family: Sequence[JobStrategy] | None = None,
    incumbents: Sequence[FeasibleJob] = (),
    max_candidates: int = MAX_CANDIDATES,
    below_seconds: float = inf,
    bounds: CallTimeBounds | None = None,
    others: Iterable[LazyFamily] = (),
) -> SearchResult:
    """Find the fastest plan of some families.

    Args:
        hardware: of the devices of each pool.
        family: the placements. None: all of `placements`.
        incumbents: feasible jobs to start from; one of them is the result if none is faster.
        max_candidates: limit of strategies of a family that are checked against memory.
        below_seconds: only plans with shorter steps are searched for.
        bounds: of the problem's calls, if there are some already.
        others: families that are searched afterwards.
    """
    family = tuple(placements(problem)) if family is None else family
    bounds = call_time_bounds(problem, hardware) if bounds is None else bounds
    search = _Search(problem, hardware, bounds, max_candidates, below_seconds)
    return search.run(family, incumbents, others)


def call_time_bounds(problem: PlanningProblem, hardware: Mapping[str, Hardware]) -> CallTimeBounds:
    """Lower bounds of a problem's calls on its hardware."""
    links = {pool.name: Links(hardware[pool.name], pool.devices_per_node) for pool in problem.pools}
    return CallTimeBounds(problem, links)


class _Search:
    """Queue and incumbent of one search."""

    def __init__(
        self,
        problem: PlanningProblem,
        hardware: Mapping[str, Hardware],
        bounds: CallTimeBounds,
        max_candidates: int,
        below_seconds: float,
    ) -> None:
        self._problem, self._hardware, self._max_candidates = problem, hardware, max_candidates
        self._bounds = bounds
        self._relaxation = Relaxation(problem, bounds, MemoryBounds(problem))
        self._queue: list[_Node] = []
        self._numbers = count()
        self._incumbent: FeasibleJob | None = None
        self._below_seconds = below_seconds
        # Step time of the incumbent; without one, the limit that steps must be below.
        self._incumbent_seconds = below_seconds
        self._num_candidates = self._num_bounded = 0
        # Candidates and placements of the families that were searched before.
        self._num_before = self._num_placements = 0
        # Lowest bound of the nodes that were left when a family's search ended.
        self._left_seconds = inf
        # Bound, number and placement of every split placement.
        self._split: list[tuple[float, int, JobStrategy]] = []

    def run(
        self,
        family: Sequence[JobStrategy],
        incumbents: Sequence[FeasibleJob],
        others: Iterable[LazyFamily],
    ) -> SearchResult:
        # The baselines come first: a low incumbent prunes nodes from the start.
        for fitted in incumbents:
            self._update_incumbent(fitted)
        self._search_family(family)
        split = tuple(self._feasible_splits())
        # A search that ended early may not have reached these placements.
        for fitted in split:
            self._update_incumbent(fitted)
        for other in others:
            if other.bound_seconds() < self._incumbent_seconds:
                self._search_family(tuple(other.placements(self._incumbent_seconds)))
        # Every other plan is no faster than the incumbent, or lies below a node that was left.
        bound = min(self._incumbent_seconds, self._left_seconds)
        seconds = inf if self._incumbent is None else self._incumbent_seconds
        return SearchResult(
            self._incumbent, seconds, bound, self._num_before, self._num_placements, split
        )

    def _search_family(self, family: Sequence[JobStrategy]) -> None:
        """Search a family, with limits of its own: what one finds depends on no other."""
        self._num_candidates = self._num_bounded = 0
        self._queue.clear()
        for placement in family:
            self._push_placement(placement)
        while self._should_continue():
            self._expand(heapq.heappop(self._queue))
        # The head of the heap has the lowest bound of the nodes that are left.
        self._left_seconds = min([self._left_seconds, *(n.bound_seconds for n in self._queue[:1])])
        self._num_before += self._num_candidates
        self._num_placements += len(family)

    def _should_continue(self) -> bool:
        """True if a node of the queue may beat the incumbent and the limits allow another
        candidate."""
        return (
            bool(self._queue)
            # The head has the lowest bound. If it is not below the incumbent, this is optimal.
            and self._queue[0].bound_seconds < self._incumbent_seconds
            and self._num_candidates < self._limit()
            # Many nodes may be bounded before a strategy is complete, so they have a limit, too.
            and self._num_bounded < self._limit() * MAX_NODES_PER_CANDIDATE
        )

    def _limit(self) -> int:
        """The limit of candidates: higher while no plan is feasible."""
        # A search below a step time may end without a plan: its limit stays.
        needs_any = self._incumbent is None and self._below_seconds == inf
        return self._max_candidates * (INFEASIBLE_FACTOR if needs_any else 1)

    def _expand(self, node: _Node) -> None:
        if node.space is None:
            # Spaces are only built for placements that reach the head of the queue.
            parts = self._relaxation.feasible_spaces(node.placement)
        elif node.space.is_complete:
            self._evaluate(node.space.strategy)
            return
        else:
            parts = self._branches(node.space)
        for space in parts:
            self._push_space(space, 1 - node.depth)

    def _branches(self, space: SearchSpace) -> Iterator[SearchSpace]:
        if space.is_single:
            try:
                apply_placement(self._problem, space.strategy)
            except (PlanError, ManifestError):
                # No runtime executes these cuts and engines. Bounds do not check that.
                return
        yield from space.branches()

    def _push_placement(self, placement: JobStrategy) -> None:
        seconds = self._relaxation.placement_bounds(placement)
        if seconds is None:
            return
        bound = self._bounds.steps.step_seconds(placement, seconds)
        self._push(_Node(bound, 0, next(self._numbers), placement, None))
        # Recorded whatever the bound, which does not cover stage fusion: with a fusion even a plan
        # whose bound is above the incumbent may be the fastest.
        if _is_split(placement):
            self._split.append((bound, len(self._split), placement))

    def _push_space(self, space: SearchSpace, depth: int) -> None:
        self._num_bounded += 1
        seconds = self._relaxation.space_bounds(space)
        bound = self._bounds.steps.step_seconds(space.placement, seconds, space.orders)
        self._push(_Node(bound, -depth, next(self._numbers), space.placement, space))

    def _push(self, node: _Node) -> None:
        # Prune: no plan below this node beats the incumbent.
        if node.bound_seconds < self._incumbent_seconds:
            heapq.heappush(self._queue, node)

    def _evaluate(self, strategy: JobStrategy) -> None:
        """Evaluate a complete strategy."""
        self._num_candidates += 1
        with suppress(PlanError):
            # The memory bounds are lower bounds: the exact sums may still not fit.
            self._update_incumbent(self._feasible(strategy))

    def _feasible(self, strategy: JobStrategy) -> FeasibleJob:
        return check_feasible(apply_placement(self._problem, strategy), strategy.roles)

    def _feasible_splits(self) -> Iterator[FeasibleJob]:
        """A feasible job of each of the best split placements, by a quick strategy; none without an
        incumbent or if stage fusion is off."""
        is_needed = self._problem.fixed.stage_fusion is not StageFusionType.NEVER
        if is_needed and self._incumbent is not None:
            for _, _, placement in heapq.nsmallest(MAX_SPLIT_PLACEMENTS, self._split):
                yield from self._quickest_feasible(placement)

    def _quickest_feasible(self, placement: JobStrategy) -> Iterator[FeasibleJob]:
        """A job with the quickest candidate of each dimension; none if that is infeasible."""
        for space in self._relaxation.feasible_spaces(placement):
            strategy = space.first_leaf()
            if strategy is not None:
                with suppress(PlanError, ManifestError):
                    self._num_candidates += 1
                    yield self._feasible(strategy)
                    return

    def _update_incumbent(self, fitted: FeasibleJob) -> None:
        """Replace the incumbent if a plan is faster."""
        plan = build_plan(fitted)
        seconds = evaluate(self._problem, plan, self._hardware).step_seconds
        # Of equally fast plans the first one stays, so that the result is deterministic.
        if seconds < self._incumbent_seconds:
            self._incumbent, self._incumbent_seconds = fitted, seconds


def _is_split(placement: JobStrategy) -> bool:
    """True if its calls run on different ranks."""
    return len({(mesh.pool, mesh.ranks) for mesh in placement.devices}) > 1
