"""How long a step takes at least on some devices, whatever the placement: what tells most sizes
apart without a search. Pure.

Each call takes at least as long as on that number of devices, of those that a placement can give
it, on which it is quickest; and it keeps devices busy for at least its least device-seconds. So

    step >= longest chain of dependencies, each call at its least seconds
    step >= sum over calls of their least device-seconds / devices

Devices begin at a node's first here, so that a call crosses as few borders of nodes as it can; as
long as networks between nodes are not faster than links within them that takes least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

from rlhf_api.plan import Mesh, Pool
from rlhf_planner.baselines.real import real_heuristic
from rlhf_planner.bounds.step import Seconds
from rlhf_planner.bounds.time import NONE, LeastSeconds
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.placement.placement import CallPlace
from rlhf_planner.problem.problem import ModelFacts, PlanningProblem
from rlhf_planner.search.pool_size import num_devices
from rlhf_planner.strategies.parallelism import cuts, engine_tensors
from rlhf_planner.strategies.placements import mesh_sizes


@dataclass(frozen=True, eq=False)
class SizeBounds:
    """Bounds for all parts of a problem's pools."""

    problem: PlanningProblem
    """With all devices."""
    hardware: Mapping[str, Hardware]
    """Of the devices of each pool."""

    def step_seconds(self, part: PlanningProblem) -> float:
        """What a step takes at least on a part of the devices; infinite where a role fits nowhere.

        Args:
            part: the problem with fewer devices.
        """
        least: dict[str, float] = {}
        work: dict[str, float] = {}
        for name, sizes in _family_sizes(part).items():
            for size in sizes:
                for call, seconds in self._on(name, size).items():
                    least[call] = min(seconds, least.get(call, inf))
                    work[call] = min(size * seconds, work.get(call, inf))
        if not all(call in least for call in self._least.computed_calls):
            return inf
        shares = (self._least.graph.expected_count(call) * each for call, each in work.items())
        return max(self._least.steps.of_chain(least), sum(shares) / num_devices(part.pools))

    @cached_property
    def _least(self) -> LeastSeconds:
        links = {
            pool.name: Links(self.hardware[pool.name], pool.devices_per_node)
            for pool in self.problem.pools
        }
        return LeastSeconds(self.problem, links)

    @cached_property
    def _found(self) -> dict[tuple[str, int], Seconds]:
        return {}

    def _on(self, pool: str, size: int) -> Seconds:
        """Of the calls of all roles on so many devices; those that cannot be computed there are
        left out."""
        if (pool, size) not in self._found:
            self._found[pool, size] = self._compute(pool, size)
        return self._found[pool, size]

    def _compute(self, pool_name: str, size: int) -> Seconds:
        pool = next(each for each in self.problem.pools if each.name == pool_name)
        found: dict[str, float] = {}
        for role, facts in self.problem.models.items():
            for seconds in self._ways(role, facts, pool, size):
                for call, each in (seconds or {}).items():
                    found[call] = min(each, found.get(call, inf))
        return found

    def _ways(
        self, role: str, facts: ModelFacts, pool: Pool, size: int
    ) -> Iterator[Seconds | None]:
        """A role's calls with its model cut, and its engines sized, as on any of a pool's devices:
        which cuts there are depends on the first of them."""
        mesh = Mesh(pool=pool.name, data=size)
        places = [
            CallPlace(mesh.model_copy(update={"first_rank": first}))
            for first in range(min(pool.devices_per_node, pool.num_devices - size + 1))
        ]
        for cut in dict.fromkeys(cut for place in places for cut in cuts(facts, place, pool)):
            yield self._least.of_model(role, mesh, cut)
        if facts.generates:
            tensors = (engine_tensors(self.problem, facts, place, pool) for place in places)
            for tensor in dict.fromkeys(each for some in tensors for each in some):
                yield self._least.of_engines(role, mesh, tensor, None, NONE)


def _family_sizes(part: PlanningProblem) -> dict[str, set[int]]:
    """Devices that a set may have in some placement that is compared, by pool."""
    found = {name: {*sizes} for name, sizes in mesh_sizes(part).items()}
    if len(part.pools) == 1:
        for place in real_heuristic(part).values():
            for mesh in (place.training.mesh, place.generation.mesh):
                found[mesh.pool].add(mesh.num_devices)
    return found
