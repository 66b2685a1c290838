"""What the calls of a step take at least on given devices, and a step with them: bounds that hold
for whatever memory lets a plan choose. Pure.

Of transitions those are counted that a plan cannot do without, all of them once it is known which
roles leave their devices. Left out of the bounds are the bytes of copies of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf
from typing import NamedTuple

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Mesh, OffloadDepth, Pool
from rlhf_flow.errors import ProfileUnusable
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.trace.graph import Graph
from rlhf_planner.bounds.step import BESIDE_RANKS, LeastSteps, Seconds
from rlhf_planner.cost.batches import call_batch, num_token_columns
from rlhf_planner.cost.calls import (
    generate_call_seconds,
    infer_call_seconds,
    train_call_seconds,
)
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.micro_batches import Batch
from rlhf_planner.cost.transfers import (
    DISPATCH_SECONDS,
    columns_seconds,
    load_seconds,
    offload_seconds,
    reshard_seconds,
)
from rlhf_planner.memory.choices import micro_batch_sizes
from rlhf_planner.memory.engine_groups import engine_meshes
from rlhf_planner.memory.generation import generation_load, kv_bytes
from rlhf_planner.memory.items import RoleModel
from rlhf_planner.memory.offloading import OffloadChoice
from rlhf_planner.memory.roles import MODEL_CALLS, role_model, static_memory
from rlhf_planner.placement.placement import CallPlace, DeviceGroup, RolePlace
from rlhf_planner.plan_calls import mini_batches
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.simulation.event_graph import PoolRanks
from rlhf_planner.strategies.parallelism import Cut, cut_mesh
from rlhf_planner.strategies.placements import Placement

Calls = frozenset[str]
"""Sites of calls."""
NONE: Calls = frozenset()


class RoleWay(NamedTuple):
    """One way to compute with a model on its ranks."""

    model: RoleModel
    """The role, its mesh, micro-batches and recomputation."""
    seconds: Seconds
    """Of its calls."""


@dataclass(frozen=True, eq=False)
class LeastSeconds:
    """Bounds for one problem."""

    problem: PlanningProblem
    """What is planned."""
    links: Mapping[str, Links]
    """Of every pool."""

    @property
    def graph(self) -> Graph:
        """The step's."""
        return self.problem.graphs[GraphName.STEP]

    @cached_property
    def steps(self) -> LeastSteps:
        """Bounds for steps."""
        return LeastSteps(self.problem)

    @cached_property
    def of_model(self) -> Callable[[str, Mesh, Cut], Seconds | None]:
        """Calls that train a role or run it forward; see `_of_model`. Answers are kept as long as
        this object."""
        return cache(self._of_model)

    @cached_property
    def of_engines(self) -> Callable[[str, Mesh, int, int | None, Calls], Seconds | None]:
        """Calls that generate with a role; see `_of_engines`."""
        return cache(self._of_engines)

    @cached_property
    def _pools(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self.problem.pools}

    def _of_model(self, role: str, mesh: Mesh, cut: Cut) -> Seconds | None:
        """Calls that train a role or run it forward, each computed in the quickest way in which the
        role fits on its devices if it is alone there. None: there is none.

        Args:
            role: its name.
            mesh: its devices, cut along `data` only.
            cut: of its model.
        """
        found: dict[str, float] | None = None
        for way in sorted(
            self.ways(role, mesh, cut, NONE), key=lambda each: sum(each.seconds.values())
        ):
            known = found or {}
            is_quicker = any(each < known.get(call, inf) for call, each in way.seconds.items())
            if (is_quicker or found is None) and self._fits_alone(way.model):
                found = {
                    call: min(each, known.get(call, inf)) for call, each in way.seconds.items()
                }
        return found

    @cached_property
    def ways(self) -> Callable[[str, Mesh, Cut, Calls], tuple[RoleWay, ...]]:
        """All ways to compute with a cut of a role's model, none where such a cut was not measured.
        Arguments as of `_of_model`, and the calls whose columns come from other nodes."""
        return cache(self._ways)

    def _ways(self, role: str, mesh: Mesh, cut: Cut, crossing: Calls) -> tuple[RoleWay, ...]:
        with suppress(ProfileUnusable):
            return tuple(
                RoleWay(model, self.of_role(model, crossing))
                for model in self._models(role, cut_mesh(mesh, cut))
            )
        return ()

    def _models(self, role: str, mesh: Mesh) -> Iterator[RoleModel]:
        """A role, computed in every way."""
        facts = self.problem.models[role]
        may = facts.is_trained and facts.fixed.recompute is None
        for recompute in (False, True) if may else (bool(facts.fixed.recompute),):
            sizes = {
                facts.fixed.micro_batch_tokens or size: None
                for size in micro_batch_sizes(self.problem)
            }
            for tokens in sizes:
                yield role_model(self.problem, facts, mesh, tokens, recompute)

    def _fits_alone(self, model: RoleModel) -> bool:
        mesh = model.mesh
        group = DeviceGroup(
            self._pools[mesh.pool], mesh.first_rank, mesh.num_devices, (model.role,), ()
        )
        alone = static_memory(self.problem, group, [model], OffloadChoice({}, frozenset()))
        return alone.excess_bytes <= 0

    def of_role(self, model: RoleModel, crossing: Calls = NONE) -> Seconds:
        """Calls that run where a role is, computed in one way: those that train it or run it
        forward, copies into it, and numerics if it is the policy.

        Args:
            model: the role.
            crossing: calls whose columns come from other nodes.
        """
        links, found = self.links[model.mesh.pool], dict[str, float]()
        for call in self.graph.calls:
            if (call.role or self.problem.policy) != model.role:
                continue
            match call.kind:
                case CallKind.TRAIN:
                    parts = mini_batches(self.problem, call)
                    work = train_call_seconds(self.problem, call, model, links, parts).total
                case CallKind.INFER:
                    work = infer_call_seconds(self.problem, call, model, links).total
                case CallKind.COMPUTE | CallKind.COPY:
                    work = 0.0
                case _:
                    continue
            found[call.id] = work + self._columns(call, model.mesh, call.id in crossing)
        return found

    @cached_property
    def of_reshards(self) -> Callable[[str, RolePlace, Cut, int], Seconds]:
        """Reshards of a role, by `move_of`; see `_of_reshards`."""
        return cache(self._of_reshards)

    def _of_reshards(self, role: str, place: RolePlace, cut: Cut, tensor: int) -> Seconds:
        """Reshards of a role, by `move_of`.

        Args:
            role: its name.
            place: where it is, cut along `data` only.
            cut: of its model.
            tensor: ranks of an engine.
        """
        mesh = cut_mesh(place.training.mesh, cut)
        pool, links = self._pools[mesh.pool], self.links[mesh.pool]
        tokens = micro_batch_sizes(self.problem)[0]
        model = role_model(self.problem, self.problem.models[role], mesh, tokens, recompute=False)
        trained = generation_load(self.problem, pool, model, place).trained
        engines = engine_meshes({role: trained}, tensor, pool.devices_per_node)[role]
        seconds = DISPATCH_SECONDS + reshard_seconds(trained, engines, links).total
        return {f"{role}.{CallKind.RESHARD}": seconds}

    def _columns(self, call: ModelCall, mesh: Mesh, crosses_nodes: bool) -> float:
        """What a call's order and its columns take."""
        batch, columns = self._batches[call.id]
        links = self.links[mesh.pool]
        return columns_seconds(batch, columns, mesh.data, links, crosses_nodes=crosses_nodes).total

    def crossing(self, placement: Placement) -> dict[str, Calls]:
        """Of each role, or the policy for numerics, the calls whose columns come from nodes on
        which they do not run."""
        found: dict[str, set[str]] = {role: set() for role in placement}
        for source, target in self._edges:
            ranks = [self.steps.ranks(placement, call)[0] for call in (source, target)]
            come_from, go_to = ({*self._nodes(each)} for each in ranks)
            if come_from - go_to:
                found[target.role or self.problem.policy].add(target.id)
        return {role: frozenset(calls) for role, calls in found.items()}

    @cached_property
    def _edges(self) -> tuple[tuple[ModelCall, ModelCall], ...]:
        """Calls on ranks of which one takes columns from the other."""
        calls = {call.id: call for call in self.graph.calls if call.kind not in BESIDE_RANKS}
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
    def _batches(self) -> Mapping[str, tuple[Batch, int]]:
        """Of each call: what it works on, and columns with a number for each token."""
        return {
            call.id: (call_batch(self.problem, call), num_token_columns(call))
            for call in self.graph.calls
        }

    def _of_engines(
        self, role: str, mesh: Mesh, tensor: int, kv_cache_bytes: int | None, crossing: Calls
    ) -> Seconds | None:
        """Calls that generate with a role. None: engines of this size were not measured.

        Args:
            role: its name.
            mesh: the devices that generate.
            tensor: ranks of an engine.
            kv_cache_bytes: of their cache on each device. None: all that they can use.
            crossing: calls whose columns come from other nodes.
        """
        facts = self.problem.models[role]
        place = CallPlace(mesh)
        sizes = micro_batch_sizes(self.problem)
        model = role_model(self.problem, facts, mesh, sizes[0], recompute=False)
        pool = self._pools[mesh.pool]
        load = generation_load(self.problem, pool, model, RolePlace(place, place))
        engines = mesh.model_copy(update={"data": mesh.num_devices // tensor, "tensor": tensor})
        if kv_cache_bytes is None:
            kv_cache_bytes = kv_bytes(load, tensor, load.sequences(engines.data))
        with suppress(ProfileUnusable):
            return {
                call.id: generate_call_seconds(
                    self.problem,
                    call,
                    model,
                    load,
                    (engines, kv_cache_bytes),
                    self.links[mesh.pool],
                ).total
                + self._columns(call, engines, call.id in crossing)
                for call in self.graph.calls_of_kind(CallKind.GENERATE)
                if call.role == role
            }
        return None

    @cached_property
    def computed_calls(self) -> tuple[str, ...]:
        """Sites of the calls that compute with a model."""
        return tuple(call.id for call in self.graph.calls_of_kind(*MODEL_CALLS))

    def moves(self, model: RoleModel, depth: OffloadDepth) -> Seconds:
        """What a role takes to leave its devices and to come back, by `move_of`; nothing if it
        stays."""
        if depth is OffloadDepth.NOTHING:
            return {}
        links = self.links[model.mesh.pool]
        return {
            f"{model.role}.{CallKind.LOAD}": DISPATCH_SECONDS
            + load_seconds(model, depth, links).total,
            f"{model.role}.{CallKind.OFFLOAD}": DISPATCH_SECONDS
            + offload_seconds(model, depth, links).total,
        }
