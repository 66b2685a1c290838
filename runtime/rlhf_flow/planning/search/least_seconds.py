"""What the calls of a step take at least on given devices, and a step with them: bounds that hold
for whatever memory lets a plan choose. Pure.

Left out of the bounds are reshards, moves of weights and columns that travel: they take time, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import inf

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Mesh, Pool
from rlhf_flow.calls import ModelCall
from rlhf_flow.errors import ProfileUnusable
from rlhf_flow.graph import Graph
from rlhf_flow.planning.call_plans import mini_batches
from rlhf_flow.planning.device_groups import DeviceGroup
from rlhf_flow.planning.estimate.model_call_seconds import (
    generate_call_seconds,
    infer_call_seconds,
    train_call_seconds,
)
from rlhf_flow.planning.estimate.step_tasks import passes_ahead, previous_calls
from rlhf_flow.planning.event_graph import PoolRanks, Task
from rlhf_flow.planning.generation_loads import generation_load
from rlhf_flow.planning.generation_memory import kv_bytes
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.memory_choices import micro_batch_sizes
from rlhf_flow.planning.offloading import OffloadChoice
from rlhf_flow.planning.placement import CallPlace, RolePlace
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.role_models import role_model
from rlhf_flow.planning.search.layouts import Cut, cut_mesh
from rlhf_flow.planning.search.placements import Placement
from rlhf_flow.planning.seconds.links import Links
from rlhf_flow.planning.simulation import step_seconds
from rlhf_flow.planning.static_memory import MODEL_CALLS, static_memory

Seconds = Mapping[str, float]
"""Of calls, by their sites."""

Ranks = Callable[[ModelCall], tuple[PoolRanks, ...]]
"""Of a call."""


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
    def of_model(self) -> Callable[[str, Mesh, Cut], Seconds | None]:
        """Calls that train a role or run it forward; see `_of_model`. Answers are kept as long as
        this object."""
        return cache(self._of_model)

    @cached_property
    def of_engines(self) -> Callable[[str, Mesh, int], Seconds | None]:
        """Calls that generate with a role; see `_of_engines`."""
        return cache(self._of_engines)

    @cached_property
    def _of_way(self) -> Callable[[str, Mesh, int, bool], Seconds]:
        return cache(self._compute_way)

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
        try:
            ways = [
                (self.of_role(model), model) for model in self._models(role, cut_mesh(mesh, cut))
            ]
        except ProfileUnusable:  # such a cut was not measured
            return None
        found: dict[str, float] | None = None
        for seconds, model in sorted(ways, key=lambda each: sum(each[0].values())):
            known = found or {}
            is_quicker = any(each < known.get(call, inf) for call, each in seconds.items())
            if (is_quicker or found is None) and self._fits_alone(model):
                found = {call: min(each, known.get(call, inf)) for call, each in seconds.items()}
        return found

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

    def of_choice(
        self, meshes: Mapping[str, Mesh], micro_batch_tokens: int, recomputed: frozenset[str]
    ) -> Seconds:
        """Calls that train roles or run them forward, all computed in one way.

        Args:
            meshes: of every role with a model.
            micro_batch_tokens: of roles for which the manifest does not say it.
            recomputed: roles whose activations are computed again.
        """
        found: dict[str, float] = {}
        for role, mesh in meshes.items():
            found |= self._of_way(role, mesh, micro_batch_tokens, role in recomputed)
        return found

    def _compute_way(
        self, role: str, mesh: Mesh, micro_batch_tokens: int, recompute: bool
    ) -> Seconds:
        facts = self.problem.models[role]
        return self.of_role(role_model(self.problem, facts, mesh, micro_batch_tokens, recompute))

    def of_role(self, model: RoleModel) -> Seconds:
        """Calls that train a role or run it forward, computed in one way."""
        links, found = self.links[model.mesh.pool], dict[str, float]()
        for call in self.graph.of_kind(CallKind.TRAIN, CallKind.INFER):
            if call.role == model.role:
                if call.kind is CallKind.TRAIN:
                    parts = mini_batches(self.problem, call)
                    each = train_call_seconds(self.problem, call, model, links, parts)
                else:
                    each = infer_call_seconds(self.problem, call, model, links)
                found[call.id] = each.total
        return found

    def _of_engines(self, role: str, mesh: Mesh, tensor: int) -> Seconds | None:
        """Calls that generate with a role, with all the cache that they can use. None: engines of
        this size were not measured.

        Args:
            role: its name.
            mesh: the devices that generate.
            tensor: ranks of an engine.
        """
        facts = self.problem.models[role]
        place = CallPlace(mesh)
        sizes = micro_batch_sizes(self.problem)
        model = role_model(self.problem, facts, mesh, sizes[0], recompute=False)
        pool = self._pools[mesh.pool]
        load = generation_load(self.problem, pool, model, RolePlace(place, place))
        engines = mesh.model_copy(update={"data": mesh.num_devices // tensor, "tensor": tensor})
        cache = kv_bytes(load, tensor, load.sequences(engines.data))
        calls = [call for call in self.graph.of_kind(CallKind.GENERATE) if call.role == role]
        with suppress(ProfileUnusable):
            return {
                call.id: generate_call_seconds(
                    self.problem, call, model, load, (engines, cache), self.links[pool.name]
                ).total
                for call in calls
            }
        return None

    def of_step(self, placement: Placement, seconds: Seconds) -> float:
        """A step in the long run.

        Args:
            placement: where roles are.
            seconds: of its calls; those left out take no time.
        """
        tasks = self._tasks(seconds, partial(self._ranks, placement))
        return step_seconds(tasks, passes_ahead(self.graph))

    def of_chain(self, seconds: Seconds) -> float:
        """A step in the long run if no call waited for the devices of another; argument as
        above."""
        return step_seconds(self._tasks(seconds, lambda _: ()), passes_ahead(self.graph))

    @cached_property
    def computed_calls(self) -> tuple[str, ...]:
        """Sites of the calls that compute with a model."""
        return tuple(call.id for call in self.graph.of_kind(*MODEL_CALLS))

    def _tasks(self, seconds: Seconds, ranks: Ranks) -> tuple[Task, ...]:
        return tuple(
            Task(
                id=call.id,
                seconds=seconds.get(call.id, 0.0) * self.graph.expected_count(call.id),
                ranks=ranks(call),
                after=after,
                after_previous=after_previous,
            )
            for call, after, after_previous in self._order
        )

    @cached_property
    def _order(self) -> tuple[tuple[ModelCall, tuple[str, ...], tuple[str, ...]], ...]:
        """Every call of the step, and what it waits for in its own step and in the one before."""
        graph, previous = self.graph, previous_calls(self.graph)
        return tuple(
            (call, tuple(sorted(graph.predecessors(call.id))), previous.get(call.id, ()))
            for call in graph.calls
        )

    def _ranks(self, placement: Placement, call: ModelCall) -> tuple[PoolRanks, ...]:
        """As `CallMeshes.of` has them."""
        if call.kind in (CallKind.SCORE, CallKind.SAVE):
            return ()
        place = placement[call.role or self.problem.policy]
        mesh = place.generation.mesh if call.kind is CallKind.GENERATE else place.training.mesh
        return (PoolRanks(mesh.pool, mesh.ranks),)
