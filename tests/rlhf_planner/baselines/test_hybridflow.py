"""HybridFlow's algorithms, beside their naive form and sums by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_planner.baselines.hybridflow import (
    STAGES,
    Mapper,
    Strategies,
    hybridflow_mapping,
    mapping_cost,
    possible_cuts,
    single_roles,
)
from rlhf_planner.baselines.rule import fits, symmetric_placements
from rlhf_planner.bounds.calls import CallTimeBounds
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import HARDWARE
from rlhf_planner.placement.strategy import Cut, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem

from ..search.searched_jobs import gpus, ppo

MEGATRON = {"engine": "Megatron"}
EIGHT = "Qwen/Qwen3-8B"
H100 = HARDWARE["H100"]


def test_stages_follow_each_other_and_sets_do_not() -> None:
    """Generation takes max(10, 0), preparation max(2, 4), training max(5, 8)."""
    assert mapping_cost([(10, 2, 5), (0, 4, 8)]) == 22
    assert mapping_cost([(10, 6, 13)]) == 29


def test_cuts_are_those_between_the_least_and_the_allocation() -> None:
    """On 2 nodes of 8 at most two stages; on half a node one, or as many as are needed."""
    legal = tuple(Cut(t, p) for t, p in product((1, 2, 4, 8), (1, 2, 4)))
    found = possible_cuts(legal, Cut(2, 1), 16, 8)
    assert found == tuple(Cut(t, p) for t, p in product((2, 4, 8), (1, 2)))
    assert possible_cuts(legal, Cut(4, 1), 4, 8) == (Cut(4, 1), Cut(8, 1))
    assert possible_cuts(legal, Cut(4, 2), 4, 8) == (Cut(4, 2), Cut(8, 2))
    assert possible_cuts((Cut(1, 1),), Cut(8, 2), 16, 8) == (Cut(1, 1),), "what is decided stays"


def test_a_roles_strategy_is_the_fastest_of_its_cuts(job: Any) -> None:
    problem = ppo(job, gpus(8, 2), training=MEGATRON, model=EIGHT)
    strategies = Strategies(problem, H100)
    found = strategies.best("critic", 16, Cut(1, 1))
    least = CallTimeBounds(problem, {"pool": Links(H100, 8)})
    mesh = Mesh(pool="pool", data=16)
    seconds = {
        (t, p): sum(calls.values())
        for t, p in product((1, 2, 4, 8), (1, 2))
        if (calls := least.role_seconds("critic", RoleStrategy(mesh, t, p))) is not None
    }
    assert found is not None and found.engines is None
    assert found.training.cut == min(seconds, key=lambda cut: seconds[cut])
    assert sum(found.stage_seconds) == pytest.approx(seconds[found.training.cut])
    assert found.stage_seconds[0] == 0
    assert strategies.best("critic", 16, Cut(1, 1)) is found, "it is sought once"


def test_engines_grow_until_weights_and_cache_fit(job: Any) -> None:
    """An engine of one rank would have 15 of 24 GiB in weights, beside what training keeps."""
    training = {**MEGATRON, "offload": "Never"}
    problem = ppo(job, gpus(8, 1, 24), training=training, model=EIGHT)
    found = Strategies(problem, H100).best("actor", 8, Cut(1, 1))
    assert found is not None and found.engines is not None and found.engines.mesh.tensor > 1
    assert all(seconds > 0 for seconds in (found.stage_seconds[0], found.stage_seconds[2]))
    roomy = Strategies(ppo(job, gpus(8), training=MEGATRON, model=EIGHT), H100)
    with_room = roomy.best("actor", 8, Cut(1, 1))
    assert with_room is not None and with_room.stage_seconds[0] <= found.stage_seconds[0]


def test_a_role_that_fits_nowhere_has_no_strategy(job: Any) -> None:
    problem = ppo(job, gpus(2, 1, 8), training=MEGATRON, model=EIGHT)
    assert Strategies(problem, H100).best("actor", 2, Cut(1, 1)) is None
    assert hybridflow_mapping(problem, H100) is None


@pytest.mark.parametrize("gibibytes", [24, 40])
def test_the_min_allocation_fits_and_one_device_less_does_not(job: Any, gibibytes: int) -> None:
    training = {**MEGATRON, "offload": "Never"}
    problem = ppo(job, gpus(8, 1, gibibytes), training=training, model="Qwen/Qwen3-4B")
    found = Mapper(problem, H100).min_allocation(("actor",))
    assert found is not None and found.num_devices > 1

    def fitting(devices: int) -> list[Cut]:
        mesh = Mesh(pool="pool", data=devices)
        return [
            cut
            for cut, placement in symmetric_placements(problem, ("actor",), mesh)
            if fits(single_roles(problem, placement))
        ]

    assert fitting(found.num_devices)[0] == found.cut
    assert not fitting(found.num_devices - 1)


def partitions(things: list[str]) -> list[list[list[str]]]:
    """All ways to part things, naively: each thing has a number of its set."""
    numbered = product(range(len(things)), repeat=len(things))
    found = []
    for numbers in numbered:
        if list(dict.fromkeys(numbers)) == list(range(len(set(numbers)))):
            sets = [[t for t, n in zip(things, numbers, strict=True) if n == s] for s in range(9)]
            found.append([each for each in sets if each])
    return found


def naive_least_cost(problem: PlanningProblem, devices: int) -> float:
    """Algorithm 1 by nested loops, and sums of calls in place of sums of stages."""
    mapper = Mapper(problem, H100)
    costs = []
    for sets in partitions(["actor", "reference", "critic"]):
        for given in product(range(1, devices + 1), repeat=len(sets)):
            least = [mapper.min_allocation(tuple(roles)) for roles in sets]
            if sum(given) != devices or any(
                each is None or each.num_devices > n for each, n in zip(least, given, strict=True)
            ):
                continue
            cost = 0.0
            for stage in range(len(STAGES)):
                of_sets = []
                for roles, number in zip(sets, given, strict=True):
                    each = [mapper.strategy(tuple(roles), role, number) for role in roles]
                    of_sets.append(sum(s.stage_seconds[stage] for s in each if s))
                cost += max(of_sets)
            costs.append(cost)
    return min(costs)


@pytest.mark.parametrize("training", [{}, MEGATRON])
def test_the_mapping_of_least_cost_is_found(job: Any, training: dict[str, Any]) -> None:
    problem = ppo(job, gpus(4), training=training)
    mapper = Mapper(problem, H100)
    costs = [cost for cost, _ in mapper.costs()]
    assert min(costs) == pytest.approx(naive_least_cost(problem, 4))
    assert all(sum(mapping.devices) == 4 for _, mapping in mapper.costs())
    fitted = hybridflow_mapping(problem, H100)
    assert fitted is not None
    ranks = {role: own.devices.ranks for role, own in fitted.strategy.roles.items()}
    assert {rank for of_role in ranks.values() for rank in of_role} == set(range(4))
    assert fitted.strategy.engines["actor"].mesh.ranks == ranks["actor"]


def test_of_five_sets_of_three_roles_each_is_allocated_in_all_ways(job: Any) -> None:
    """5 partitions: one of 1, three of 2, one of 3 sets; 4 devices to them in 1, 3 and 3 ways."""
    mapper = Mapper(ppo(job, gpus(4)), H100)
    mappings = [mapping for _, mapping in mapper.costs()]
    assert len({mapping.sets for mapping in mappings}) == 5
    assert len(mappings) == 1 + 3 * 3 + 3


def test_stages_are_those_of_the_calls_kinds(job: Any) -> None:
    problem = ppo(job, gpus(4))
    found = Strategies(problem, H100).best("reference", 4, Cut(1, 1))
    graph = problem.graphs[GraphName.STEP]
    assert [call.id for call in graph.calls_of_kind(CallKind.INFER) if call.role == "reference"]
    assert found is not None
    generation, preparation, training = found.stage_seconds
    assert (generation, training) == (0, 0) and preparation > 0
