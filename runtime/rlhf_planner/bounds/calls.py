"""Seconds of the calls of strategies: of a complete one its price, of an open one the minimum over
all that complete it. Pure.

Whatever the strategies of other roles, and the memory that they leave: no plan is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, OffloadDepth
from rlhf_flow.errors import ProfileUnusable
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.trace.graph import Graph
from rlhf_planner.bounds.step import OFF_RANKS, Seconds, StepTimeBounds
from rlhf_planner.candidates.completions import completions, cuts, engine_completions
from rlhf_planner.cost.calls import CallCosts
from rlhf_planner.cost.collectives import Links
from rlhf_planner.memory.engine_groups import engine_meshes
from rlhf_planner.memory.generation import generation_load, kv_bytes
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.memory.roles import MODEL_CALLS, role_model, static_memory
from rlhf_planner.placement.placement import DeviceGroup
from rlhf_planner.placement.strategy import EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.simulation.event_graph import PoolRanks

# Sites of calls.
Calls = frozenset[str]
NONE: Calls = frozenset()


@dataclass(frozen=True, eq=False)
class CallTimeBounds:
    """Seconds of strategies of one problem; results are cached for the lifetime of this object."""

    problem: PlanningProblem
    links: Mapping[str, Links]
    """Links of each pool."""

    @property
    def graph(self) -> Graph:
        """The graph of the step."""
        return self.problem.graphs[GraphName.STEP]

    @cached_property
    def steps(self) -> StepTimeBounds:
        """Lower bounds of steps."""
        return StepTimeBounds(self.problem)

    @cached_property
    def _costs(self) -> CallCosts:
        return CallCosts(self.problem, self.links)

    @cached_property
    def model(self) -> Callable[[str, RoleStrategy], RoleModel]:
        """A role as its strategy computes it."""
        # A cache per object: `cache` on the method would keep all problems in memory.
        return cache(lambda role, strategy: role_model(self.problem, role, strategy))

    @cached_property
    def role_seconds(self) -> Callable[[str, RoleStrategy], Seconds | None]:
        """Calls that train a role or run it forward, with the fastest completions with which it
        fits alone on its devices. None: there is none."""
        return cache(self._role_seconds)

    def _role_seconds(self, role: str, strategy: RoleStrategy) -> Seconds | None:
        first_node = self._in_first_node(strategy.devices)
        if first_node is not None:
            return self.role_seconds(role, replace(strategy, devices=first_node))
        priced = [
            completion
            for cut in self.cuts(role, strategy)
            for completion in self.completions(role, cut, NONE).items()
        ]
        fastest: Seconds | None = None
        for completion, seconds in sorted(priced, key=lambda pair: sum(pair[1].values())):
            # Checking memory costs more than comparing times, so only completions that would
            # improve a call are checked.
            is_quicker = fastest is None or any(s < fastest[call] for call, s in seconds.items())
            if is_quicker and self._fits_alone(role, completion):
                # Every call takes its own fastest completion. A plan has one for all calls of a
                # role, which is no faster.
                fastest = fastest_of([seconds] if fastest is None else [fastest, seconds])
        return fastest

    def _in_first_node(self, devices: Mesh) -> Mesh | None:
        """The devices of a pool that begin in its first node and lie in their nodes as others do.
        None: they begin there themselves."""
        # Times depend on which devices share a node, not on where a pool has it. So many
        # placements share them.
        per_node = self.links[devices.pool].devices_per_node
        if devices.first_rank < per_node:
            return None
        return devices.model_copy(update={"first_rank": devices.first_rank % per_node})

    @cached_property
    def cuts(self) -> Callable[[str, RoleStrategy], tuple[RoleStrategy, ...]]:
        """A strategy of a role with every cut that completes it."""
        return cache(self._cuts)

    def _cuts(self, role: str, strategy: RoleStrategy) -> tuple[RoleStrategy, ...]:
        return tuple(map(strategy.with_cut, cuts(self.problem, role, strategy)))

    @cached_property
    def completions(self) -> Callable[[str, RoleStrategy, Calls], Mapping[RoleStrategy, Seconds]]:
        """Every completion of a strategy with a cut, with seconds of the calls that train the role
        or run it forward, copies into it, and numerics if it is the policy.

        Takes the role, its strategy, and the calls whose columns come from other nodes. Empty if
        the profile lacks the cut.
        """
        return cache(self._completions)

    def _completions(
        self, role: str, strategy: RoleStrategy, crossing: Calls
    ) -> Mapping[RoleStrategy, Seconds]:
        first_node = self._in_first_node(strategy.devices)
        if first_node is not None:
            same = self.completions(role, replace(strategy, devices=first_node), crossing)
            return {replace(c, devices=strategy.devices): seconds for c, seconds in same.items()}
        # A profile may lack a cut: such strategies are no candidates.
        with suppress(ProfileUnusable):
            return {
                complete: self._price(role, complete, crossing)
                for complete in completions(self.problem, role, strategy)
            }
        return {}

    def _price(self, role: str, strategy: RoleStrategy, crossing: Calls) -> Seconds:
        model = self.model(role, strategy)
        kinds = (CallKind.TRAIN, CallKind.INFER, CallKind.COMPUTE, CallKind.COPY)
        # The bytes of copied weights do not count, so this stays a lower bound.
        return {
            call.id: self._costs.on_role(call, model, crosses_nodes=call.id in crossing).total
            for call in self.graph.calls_of_kind(*kinds)
            if (call.role or self.problem.policy) == role
        }

    def _fits_alone(self, role: str, strategy: RoleStrategy) -> bool:
        # Other roles on these devices only add memory.
        mesh = strategy.devices
        pool = self.problem.pool(mesh.pool)
        group = DeviceGroup(pool, mesh.first_rank, mesh.num_devices, (role,), ())
        alone = static_memory(self.problem, group, [self.model(role, strategy)], {})
        return alone.excess_bytes <= 0

    @cached_property
    def move_seconds(self) -> Callable[[str, RoleStrategy], Seconds]:
        """A role's load and offload, by `move_of`; empty if it never leaves its devices. Takes the
        role, and its strategy with cut and depth."""
        return cache(self._move_seconds)

    def _move_seconds(self, role: str, strategy: RoleStrategy) -> Seconds:
        if strategy.offload in (None, OffloadDepth.NOTHING):
            return {}
        model = self.model(role, strategy)
        return {
            f"{role}.{kind}": self._costs.move(kind, model, strategy.offload).total
            for kind in (CallKind.LOAD, CallKind.OFFLOAD)
        }

    @cached_property
    def reshard_seconds(self) -> Callable[[str, RoleStrategy, EngineStrategy], Seconds]:
        """Reshards and releases of a role, by `move_of`. Takes the role, its strategy with a cut,
        and its engines with a size."""
        return cache(self._reshard_seconds)

    def _reshard_seconds(
        self, role: str, strategy: RoleStrategy, engines: EngineStrategy
    ) -> Seconds:
        model = self.model(role, strategy)
        trained = {role: generation_load(self.problem, model, engines).trained}
        per_node = self.problem.pool(engines.devices.pool).devices_per_node
        mesh = engine_meshes(trained, engines.mesh.tensor, per_node)[role]
        grouped = replace(engines, tensor_stride=mesh.tensor_stride)
        return {
            f"{role}.{CallKind.RESHARD}": self._costs.reshard(model, grouped).total,
            f"{role}.{CallKind.RELEASE}": self._costs.release(model, grouped).total,
        }

    @cached_property
    def engine_seconds(self) -> Callable[[str, EngineStrategy, Calls], Seconds | None]:
        """Calls that generate with a role, with the fastest engines that complete its strategy.
        None: there are none.

        Takes the role, its engines, and the calls whose columns come from other nodes.
        """
        return cache(self._engine_seconds)

    def _engine_seconds(
        self, role: str, engines: EngineStrategy, crossing: Calls
    ) -> Seconds | None:
        first_node = self._in_first_node(engines.devices)
        if first_node is not None:
            return self.engine_seconds(role, replace(engines, devices=first_node), crossing)
        # Generation has no micro-batches, and no cut but that of its engines.
        model = self.model(role, RoleStrategy(engines.devices))
        calls = [c for c in self.graph.calls_of_kind(CallKind.GENERATE) if c.role == role]
        priced = []
        for sized in engine_completions(self.problem, role, engines):
            cache_bytes = sized.kv_cache_bytes
            if cache_bytes is None:
                # A larger cache never generates more slowly.
                cache_bytes = self.cache_bytes(role, sized)[1]
            # A profile may lack engines of a size.
            with suppress(ProfileUnusable):
                priced.append(
                    {
                        call.id: self._costs.generate(
                            call,
                            model,
                            replace(sized, kv_cache_bytes=cache_bytes),
                            crosses_nodes=call.id in crossing,
                        ).total
                        for call in calls
                    }
                )
        return fastest_of(priced) if priced else None

    @cached_property
    def cache_bytes(self) -> Callable[[str, EngineStrategy], tuple[int, int]]:
        """Bytes of the smallest cache that engines of a size may have, and of the largest that they
        can use."""
        return cache(self._cache_bytes)

    def _cache_bytes(self, role: str, engines: EngineStrategy) -> tuple[int, int]:
        fixed_bytes = self.problem.fixed.kv_cache_bytes
        if fixed_bytes is not None:
            return fixed_bytes, fixed_bytes
        model = self.model(role, RoleStrategy(engines.devices))
        load = generation_load(self.problem, model, engines)
        mesh = engines.mesh
        # An engine that cannot hold one longest sequence could not finish it.
        numbers = (1, load.sequences(mesh.data))
        smallest, largest = (kv_bytes(load, mesh.tensor, number) for number in numbers)
        return smallest, largest

    def crossing(self, placement: JobStrategy) -> dict[str, Calls]:
        """Per role, or the policy for numerics, the calls whose columns come from other nodes."""
        crossing_calls: dict[str, set[str]] = {role: set() for role in placement.roles}
        for source, target in self._edges:
            ranks = [self.steps.ranks(placement, call)[0] for call in (source, target)]
            source_nodes, target_nodes = ({*self._nodes(rank)} for rank in ranks)
            # Columns from a node without ranks of the reader cross the network.
            if source_nodes - target_nodes:
                crossing_calls[target.role or self.problem.policy].add(target.id)
        return {role: frozenset(calls) for role, calls in crossing_calls.items()}

    @cached_property
    def _edges(self) -> tuple[tuple[ModelCall, ModelCall], ...]:
        """Pairs of calls on ranks where the second reads columns of the first."""
        calls = {call.id: call for call in self.graph.calls if call.kind not in OFF_RANKS}
        return tuple(
            (calls[edge.source], calls[edge.target])
            for edge in self.graph.data_edges
            if edge.source in calls and edge.target in calls
        )

    def _nodes(self, ranks: PoolRanks) -> Iterator[tuple[str, int]]:
        per_node = self.links[ranks.pool].devices_per_node
        first, last = ranks.ranks.start // per_node, (ranks.ranks.stop - 1) // per_node
        for node in range(first, last + 1):
            yield ranks.pool, node

    @cached_property
    def computed_calls(self) -> tuple[str, ...]:
        """Sites of the calls that compute with a model."""
        return tuple(call.id for call in self.graph.calls_of_kind(*MODEL_CALLS))


def fastest_of(bounds: Iterable[Seconds]) -> Seconds:
    """The minimum for each call; every bound has the same calls."""
    first, *others = bounds
    return {call: min([seconds, *(o[call] for o in others)]) for call, seconds in first.items()}
