"""The strategies of a placement as a tree: each role's candidates, with bounds of their times and
memory. Pure.

A dimension is a role's training and forward passes, or its engines. A space keeps the candidates of
each dimension that fit next to the minimum of all others, and branches into parts. First each role
gets a cut and each engine a size; then each role the rest of its strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add, le, sub
from typing import NamedTuple

from rlhf_planner.bounds.calls import Calls, fastest_of
from rlhf_planner.bounds.memory import BytesPerPhase, Capacity
from rlhf_planner.bounds.step import Order, Seconds
from rlhf_planner.placement.strategy import EngineStrategy, JobStrategy, RoleStrategy


@dataclass(frozen=True, eq=False)
class Candidate:
    """A strategy of a role or of its engines."""

    strategy: RoleStrategy | EngineStrategy
    seconds: Seconds
    """Lower bound of each of its calls."""
    min_bytes: BytesPerPhase
    """Lower bound of the bytes of the placement's capacity that it uses."""
    completions: tuple[Candidate, ...] = ()
    """Candidates that complete an open strategy."""


def open_candidate(
    strategy: RoleStrategy | EngineStrategy, completions: Sequence[Candidate]
) -> Candidate:
    """An open strategy: its bounds are the minimum over at least one completion."""
    return Candidate(
        strategy,
        fastest_of(completion.seconds for completion in completions),
        min_bytes_of([completion.min_bytes for completion in completions]),
        tuple(completions),
    )


class Dimension(NamedTuple):
    """A part of a job's strategy."""

    role: str
    is_engines: bool = False
    """True for its engines, False for its training and forward passes."""


# The candidates of each dimension.
Domains = tuple[tuple[Candidate, ...], ...]


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Strategies of a placement, for one choice of the roles that leave their devices."""

    placement: JobStrategy
    dimensions: tuple[Dimension, ...]
    domains: Domains
    capacity: Capacity
    """Memory of its devices, without what every process needs."""
    crossing: Mapping[str, Calls]
    """Per role, the calls whose columns come from other nodes."""
    orders: tuple[Order, ...]
    """Possible orders of a step's calls, with loads and offloads. Empty: no role leaves its
    devices."""
    residual: tuple[BytesPerPhase, ...] = ()
    """Per dimension: capacity minus the minimum of all others. Empty until it is propagated."""

    @property
    def is_single(self) -> bool:
        """True if each dimension has one candidate."""
        return all(len(domain) == 1 for domain in self.domains)

    @property
    def is_complete(self) -> bool:
        """True if each dimension has one candidate that leaves nothing open."""
        return self.is_single and not any(domain[0].completions for domain in self.domains)

    @property
    def strategy(self) -> JobStrategy:
        """The strategy of the first candidates."""
        roles, engines = {**self.placement.roles}, {**self.placement.engines}
        for dimension, (candidate, *_) in zip(self.dimensions, self.domains, strict=True):
            if isinstance(candidate.strategy, RoleStrategy):
                roles[dimension.role] = candidate.strategy
            else:
                engines[dimension.role] = candidate.strategy
        return JobStrategy(roles, engines)

    def propagated(self) -> SearchSpace | None:
        """The space without candidates that do not fit next to the minimum of all other dimensions.
        None: no combination fits."""
        # A removal may raise the minimum of its own dimension and so exclude candidates of others.
        # It repeats until nothing changes.
        domains = self.domains
        while all(domains):
            minimums = [
                min_bytes_of([candidate.min_bytes for candidate in domain]) for domain in domains
            ]
            residual = residual_bytes(self.capacity.spare, minimums)
            kept = tuple(map(_fitting, domains, residual))
            # Nothing was removed, so another round would change nothing.
            if all(len(new) == len(old) for new, old in zip(kept, domains, strict=True)):
                return replace(self, domains=domains, residual=tuple(residual))
            domains = kept
        return None

    def pruned(self) -> SearchSpace | None:
        """The space without candidates and completions that fit in no combination; quickest
        candidates first. None: nothing fits."""
        root = self.propagated()
        if root is None:
            return None
        domains = []
        for domain, free in zip(root.domains, root.residual, strict=True):
            # A minimum combines the memory of several completions. A candidate stays only if one of
            # them fits.
            fitting = [
                open_candidate(candidate.strategy, completions) if completions else candidate
                for candidate in domain
                if (completions := _fitting(candidate.completions, free))
                or not candidate.completions
            ]
            # Of nodes with equal bounds the search expands those of earlier candidates first.
            fitting.sort(key=lambda candidate: sum(candidate.seconds.values()))
            domains.append(tuple(fitting))
        return replace(self, domains=tuple(domains)).propagated()

    def branches(self) -> Iterator[SearchSpace]:
        """The parts of a propagated space: one for each candidate of its first open dimension. If
        all dimensions have one candidate, its completions are the candidates."""
        domains = self.domains
        if self.is_single:
            domains = tuple(
                _pareto_optimal(_fitting(only.completions, free)) if only.completions else (only,)
                for (only,), free in zip(domains, self.residual, strict=True)
            )
        # The first open dimension; if all have one candidate again, there is one part.
        number = next((n for n, domain in enumerate(domains) if len(domain) > 1), 0)
        for candidate in domains[number]:
            narrowed = (*domains[:number], (candidate,), *domains[number + 1 :])
            part = replace(self, domains=narrowed).propagated()
            if part is not None:
                yield part

    def first_leaf(self) -> JobStrategy | None:
        """The strategy of the quickest candidates, one dimension after the other. None: they do not
        fit."""
        space: SearchSpace | None = self
        while space is not None and not space.is_complete:
            space = next(space.branches(), None)
        return None if space is None else space.strategy


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


def _fitting(candidates: Sequence[Candidate], capacity: BytesPerPhase) -> tuple[Candidate, ...]:
    return tuple(candidate for candidate in candidates if fits(candidate.min_bytes, capacity))


def _pareto_optimal(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The candidates of which no other takes as little time and memory, quickest first."""
    optimal: list[Candidate] = []
    # Sorted by time, so a candidate can only be dominated by one that was kept before.
    for candidate in sorted(
        candidates,
        key=lambda candidate: (sum(candidate.seconds.values()), sum(candidate.min_bytes)),
    ):
        if not any(_dominates(other, candidate) for other in optimal):
            optimal.append(candidate)
    return tuple(optimal)


def _dominates(one: Candidate, other: Candidate) -> bool:
    return fits(one.min_bytes, other.min_bytes) and all(
        seconds <= other.seconds[call] for call, seconds in one.seconds.items()
    )
