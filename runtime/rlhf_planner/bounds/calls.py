"""Lower bounds of the times of calls on their devices, for every choice of memory. Pure.

Until the roles that leave their devices are fixed, only those transitions count that every plan
has; afterwards all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf
from typing import NamedTuple

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, OffloadDepth, Pool
from rlhf_flow.errors import ProfileUnusable
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.trace.graph import Graph
from rlhf_planner.bounds.step import OFF_RANKS, Seconds, StepTimeBounds
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
from rlhf_planner.placement.placement import CallPlacement, DeviceGroup, RolePlacement
from rlhf_planner.plan_calls import mini_batches
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.simulation.event_graph import PoolRanks
from rlhf_planner.strategies.parallelism import Cut, cut_mesh
from rlhf_planner.strategies.placements import Placement

# Sites of calls.
Calls = frozenset[str]
NONE: Calls = frozenset()


class RoleConfig(NamedTuple):
    """A config of a model on its ranks."""

    model: RoleModel
    """The role, its mesh, micro-batches and recomputation."""
    seconds: Seconds
    """Seconds of its calls."""


@dataclass(frozen=True, eq=False)
class CallTimeBounds:
    """Lower bounds for one problem; results are cached for the lifetime of this object."""

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
    def model_calls(self) -> Callable[[str, Mesh, Cut], Seconds | None]:
        """Calls that train a role or run it forward; see `_model_calls`."""
        return cache(self._model_calls)

    @cached_property
    def generate_calls(self) -> Callable[[str, Mesh, int, int | None, Calls], Seconds | None]:
        """Calls that generate with a role; see `_generate_calls`."""
        return cache(self._generate_calls)

    @cached_property
    def _pools(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self.problem.pools}

    def _model_calls(self, role: str, mesh: Mesh, cut: Cut) -> Seconds | None:
        """Bound calls that train a role or run it forward. None: no config fits.

        Each call takes the fastest config with which the role, alone on its devices, fits.

        Args:
            mesh: the role's devices, cut along `data` only.
            cut: of the role's model.
        """
        fastest: dict[str, float] | None = None
        for config in sorted(
            self.configs(role, mesh, cut, NONE), key=lambda config: sum(config.seconds.values())
        ):
            best_seconds = fastest or {}
            # Checking memory costs more than comparing times, so only configs that would improve a
            # call are checked.
            is_quicker = any(
                seconds < best_seconds.get(call, inf) for call, seconds in config.seconds.items()
            )
            if (is_quicker or fastest is None) and self._fits_alone(config.model):
                # Every call takes its own fastest config. A plan has one config for all calls of a
                # role, which is no faster.
                fastest = {
                    call: min(seconds, best_seconds.get(call, inf))
                    for call, seconds in config.seconds.items()
                }
        return fastest

    @cached_property
    def configs(self) -> Callable[[str, Mesh, Cut, Calls], tuple[RoleConfig, ...]]:
        """All configs of a cut of a role's model; arguments as for `_model_calls`, and the calls
        whose columns come from other nodes. Empty if the profile lacks the cut."""
        return cache(self._configs)

    def _configs(self, role: str, mesh: Mesh, cut: Cut, crossing: Calls) -> tuple[RoleConfig, ...]:
        # A profile may lack a cut: such configs are no candidates.
        with suppress(ProfileUnusable):
            return tuple(
                RoleConfig(model, self.role_calls(model, crossing))
                for model in self._models(role, cut_mesh(mesh, cut))
            )
        return ()

    def _models(self, role: str, mesh: Mesh) -> Iterator[RoleModel]:
        """A role in every config."""
        facts = self.problem.models[role]
        is_free = facts.is_trained and facts.fixed.recompute is None
        for recompute in (False, True) if is_free else (bool(facts.fixed.recompute),):
            # A fixed size replaces all others; a dict keeps the order without duplicates.
            sizes = {
                facts.fixed.micro_batch_tokens or size: None
                for size in micro_batch_sizes(self.problem)
            }
            for tokens in sizes:
                yield role_model(self.problem, facts, mesh, tokens, recompute)

    def _fits_alone(self, model: RoleModel) -> bool:
        # Other roles on these devices only add memory.
        mesh = model.mesh
        group = DeviceGroup(
            self._pools[mesh.pool], mesh.first_rank, mesh.num_devices, (model.role,), ()
        )
        alone = static_memory(self.problem, group, [model], OffloadChoice({}, frozenset()))
        return alone.excess_bytes <= 0

    def role_calls(self, model: RoleModel, crossing: Calls = NONE) -> Seconds:
        """Calls that run on a role's ranks in one config: those that train it or run it forward,
        copies into it, and numerics if it is the policy.

        Args:
            model: the role.
            crossing: calls whose columns come from other nodes.
        """
        links, seconds = self.links[model.mesh.pool], dict[str, float]()
        for call in self.graph.calls:
            if (call.role or self.problem.policy) != model.role:
                continue
            match call.kind:
                case CallKind.TRAIN:
                    parts = mini_batches(self.problem, call)
                    compute_seconds = train_call_seconds(
                        self.problem, call, model, links, parts
                    ).total
                case CallKind.INFER:
                    compute_seconds = infer_call_seconds(self.problem, call, model, links).total
                case CallKind.COMPUTE | CallKind.COPY:
                    # The bytes of copied weights do not count, so this stays a lower bound.
                    compute_seconds = 0.0
                case _:
                    continue
            seconds[call.id] = compute_seconds + self._columns(
                call, model.mesh, call.id in crossing
            )
        return seconds

    @cached_property
    def reshards(self) -> Callable[[str, RolePlacement, Cut, int], Seconds]:
        """Reshards of a role, by `move_of`; see `_reshards`."""
        return cache(self._reshards)

    def _reshards(self, role: str, role_placement: RolePlacement, cut: Cut, tensor: int) -> Seconds:
        """Reshards of a role, by `move_of`.

        Args:
            role_placement: the role's devices, cut along `data` only.
            cut: of the role's model.
            tensor: ranks of an engine.
        """
        mesh = cut_mesh(role_placement.training.mesh, cut)
        pool, links = self._pools[mesh.pool], self.links[mesh.pool]
        # Any micro-batch size gives the same weights to send.
        tokens = micro_batch_sizes(self.problem)[0]
        model = role_model(self.problem, self.problem.models[role], mesh, tokens, recompute=False)
        trained = generation_load(self.problem, pool, model, role_placement).trained
        engines = engine_meshes({role: trained}, tensor, pool.devices_per_node)[role]
        seconds = DISPATCH_SECONDS + reshard_seconds(trained, engines, links).total
        return {f"{role}.{CallKind.RESHARD}": seconds}

    def _columns(self, call: ModelCall, mesh: Mesh, crosses_nodes: bool) -> float:
        """Seconds of a call's dispatch and columns."""
        batch, columns = self._batches[call.id]
        links = self.links[mesh.pool]
        return columns_seconds(batch, columns, mesh.data, links, crosses_nodes=crosses_nodes).total

    def crossing(self, placement: Placement) -> dict[str, Calls]:
        """Per role, or the policy for numerics, the calls whose columns come from other nodes."""
        crossing_calls: dict[str, set[str]] = {role: set() for role in placement}
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
    def _batches(self) -> Mapping[str, tuple[Batch, int]]:
        """Batch of each call, and its number of columns with a value per token."""
        return {
            call.id: (call_batch(self.problem, call), num_token_columns(call))
            for call in self.graph.calls
        }

    def _generate_calls(
        self, role: str, mesh: Mesh, tensor: int, kv_cache_bytes: int | None, crossing: Calls
    ) -> Seconds | None:
        """Bound calls that generate with a role. None: the profile lacks engines of this size.

        Args:
            mesh: the devices that generate.
            tensor: ranks of an engine.
            kv_cache_bytes: cache per device. None: as large as engines can use.
            crossing: calls whose columns come from other nodes.
        """
        facts = self.problem.models[role]
        call_placement = CallPlacement(mesh)
        # Generation has no micro-batches: any size serves.
        sizes = micro_batch_sizes(self.problem)
        model = role_model(self.problem, facts, mesh, sizes[0], recompute=False)
        pool = self._pools[mesh.pool]
        load = generation_load(
            self.problem, pool, model, RolePlacement(call_placement, call_placement)
        )
        engines = mesh.model_copy(update={"data": mesh.num_devices // tensor, "tensor": tensor})
        if kv_cache_bytes is None:
            # A larger cache never generates more slowly.
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

    def offload_calls(self, model: RoleModel, depth: OffloadDepth) -> Seconds:
        """Seconds of a role's loads and offloads, by `move_of`; empty if it never leaves."""
        if depth is OffloadDepth.NOTHING:
            return {}
        links = self.links[model.mesh.pool]
        return {
            f"{model.role}.{CallKind.LOAD}": DISPATCH_SECONDS
            + load_seconds(model, depth, links).total,
            f"{model.role}.{CallKind.OFFLOAD}": DISPATCH_SECONDS
            + offload_seconds(model, depth, links).total,
        }
