"""HybridFlow's algorithm 2: how a role's model is cut on so many devices, and with which engines it
generates there, each the fastest by itself. Pure.

    t in {t_min, ..., U},  p in {p_min, ..., N_l / U},  d = N_l / (p t)

for N_l devices, U of them on a node; the least of simulate(p, t, d) is taken.

What the paper leaves open, as it is here:
- Its simulators are the time model of this planner (`simulate`: seconds/), with the quickest way to
  compute with which the role fits on its devices if it is alone there.
- Left out are cuts for which d is no whole number, p does not divide the layers, t does not divide
  heads and widths, or tensor ranks would be on two nodes. Where N_l is less than a node, t ends at
  N_l and p at p_min. If t_min or p_min divides nothing the next that does is first.
- FSDP's roles are not cut; a manifest's cut is kept.
- The policy's cut for training is chosen first, by its calls that train or run forward. What it
  holds is recorded, and engines grow from one rank until their weights and a cache for the longest
  sequence fit beside it; from there on the fastest is kept, with the cache that is left.

Source: HybridFlow (arXiv 2409.19256), section 6 and algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import inf

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Mesh
from rlhf_flow.errors import ProfileUnusable
from rlhf_flow.planning.baselines.baseline import fits
from rlhf_flow.planning.device_groups import device_groups
from rlhf_flow.planning.estimate.model_call_seconds import generate_call_seconds
from rlhf_flow.planning.first_that_fits import first_way_that_fits
from rlhf_flow.planning.fitting import FittedJob, PlacedJob
from rlhf_flow.planning.placement import CallPlace, RolePlace
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.layouts import Cut, cut_place, cuts, engine_tensors
from rlhf_flow.planning.search.least_seconds import LeastSeconds
from rlhf_flow.planning.search.placements import Placement
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.seconds.links import Links
from rlhf_flow.planning.training_mesh import cut_meshes

STAGES = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)
"""Of a step, by their calls: generation, preparation, training."""


@dataclass(frozen=True)
class Strategy:
    """How a role computes on so many devices."""

    cut: Cut
    """For training and forward passes."""
    engine_tensor: int | None
    """Ranks of an engine. None: it does not generate."""
    stage_seconds: tuple[float, ...]
    """Of its calls in each of `STAGES`, one call after the other."""


class Strategies:
    """The best strategy of each role on each number of devices; each is sought once."""

    def __init__(self, problem: PlanningProblem, hardware: Hardware) -> None:
        (self._pool,) = problem.pools
        self._problem, self._graph = problem, problem.graphs[GraphName.STEP]
        self._links = Links(hardware, self._pool.devices_per_node)
        self._least = LeastSeconds(problem, {self._pool.name: self._links})
        self.best = cache(self._best)
        self._engines = cache(self._best_engines)

    def _best(self, role: str, num_devices: int, least: Cut) -> Strategy | None:
        """The fastest cut and engines of a role. None: none fits, even if it is alone.

        Args:
            role: its name.
            num_devices: of its set.
            least: tensor ranks and stages, t_min and p_min.
        """
        place = CallPlace(Mesh(pool=self._pool.name, data=num_devices))
        priced = [
            (seconds, cut)
            for cut in possible_cuts(self._cuts(role, place), least, num_devices, self._per_node)
            if (seconds := self._simulate(role, place.mesh, cut)) is not None
        ]
        if not priced:
            return None
        seconds, cut = min(priced, key=lambda each: sum(each[0]))
        if not self._problem.models[role].generates:
            return Strategy(cut, None, seconds)
        engines = self._engines(role, num_devices, cut)
        if engines is None:
            return None
        tensor, generation = engines
        return Strategy(cut, tensor, (generation, *seconds[1:]))

    @property
    def _per_node(self) -> int:
        return self._pool.devices_per_node

    def _cuts(self, role: str, place: CallPlace) -> tuple[Cut, ...]:
        return cuts(self._problem.models[role], place, self._pool)

    def _simulate(self, role: str, mesh: Mesh, cut: Cut) -> tuple[float, ...] | None:
        """Seconds of a role's calls in each stage, without generation."""
        calls = self._least.of_model(role, mesh, cut)
        if calls is None:
            return None
        return tuple(
            sum(
                calls.get(call.id, 0.0) * self._graph.expected_count(call.id)
                for call in self._graph.calls_of_kind(kind)
            )
            for kind in STAGES
        )

    def _best_engines(self, role: str, num_devices: int, cut: Cut) -> tuple[int, float] | None:
        """The fastest size of engines that fits beside a role's training, with the seconds of the
        calls that generate. None: none fits."""
        place = CallPlace(Mesh(pool=self._pool.name, data=num_devices))
        facts = self._problem.models[role]
        best: tuple[int, float] | None = None
        for tensor in engine_tensors(self._problem, facts, place, self._pool):
            engines = CallPlace(place.mesh, tensor, is_chosen=True)
            placed = placed_alone(self._problem, {role: RolePlace(cut_place(place, cut), engines)})
            if not fits(placed):
                continue
            seconds = self._generation_seconds(role, first_way_that_fits(placed))
            if seconds < (inf if best is None else best[1]):
                best = tensor, seconds
        return best

    def _generation_seconds(self, role: str, fitted: FittedJob) -> float:
        (model,), engine = fitted.models, fitted.engines[role]
        load = next(loads[role] for loads in fitted.loads if role in loads)
        found = 0.0
        for call in self._graph.calls_of_kind(CallKind.GENERATE):
            if call.role == role:
                engines = engine.mesh, engine.kv_cache_bytes
                try:
                    each = generate_call_seconds(
                        self._problem, call, model, load, engines, self._links
                    )
                except ProfileUnusable:  # engines of this size were not measured
                    return inf
                found += each.total * self._graph.expected_count(call.id)
        return found


def placed_alone(problem: PlanningProblem, placement: Placement) -> PlacedJob:
    """Some roles of a job, as if their devices held no others.

    Args:
        problem: what is planned.
        placement: of these roles, with models cut and engines sized.
    """
    models = {role: facts for role, facts in problem.models.items() if role in placement}
    subset = replace(problem, models=models)
    meshes = cut_meshes(subset, placement)
    groups = device_groups(problem.pools, placement)
    return PlacedJob(subset, placement, meshes, groups, is_chosen=True)


def possible_cuts(
    legal: tuple[Cut, ...], least: Cut, num_devices: int, per_node: int
) -> tuple[Cut, ...]:
    """The cuts that the algorithm tries.

    Args:
        legal: cuts that come out even; only one where it is decided.
        least: tensor ranks and stages, t_min and p_min.
        num_devices: of the set, N_l.
        per_node: devices of a node.
    """
    if len(legal) == 1:
        return legal
    most = max(least.pipeline, num_devices // per_node)
    return tuple(
        cut
        for cut in legal
        if cut.tensor >= least.tensor and least.pipeline <= cut.pipeline <= most
    )
