"""The papers' job and placements are as published, and results are counted as in the papers."""

from __future__ import annotations

import pytest

from rlhf_api.mesh import Mesh
from rlhf_planner.placement.strategy import EngineStrategy, JobStrategy, RoleStrategy

ROLES = ("actor", "critic", "reference", "reward_model")


def test_the_job_is_the_papers() -> None:
    from papers_job import paper_hardware, paper_problem

    problem = paper_problem("34B", 96)
    workload = problem.workload
    assert sorted(problem.models) == sorted(ROLES)
    assert all(facts.uses_megatron for facts in problem.models.values())
    assert all(facts.fixed.tensor is None for facts in problem.models.values())
    assert (workload.prompts_per_step, workload.updates_per_epoch) == (1024, 8)
    assert workload.expected_response_tokens == workload.max_response_tokens == 1024
    assert sum(pool.num_devices for pool in problem.pools) == 96
    assert 8 * paper_hardware().network_bytes_per_second * 8 == 200e9, "bits of a node"


@pytest.mark.parametrize(
    ("model", "billions"), [("7B", 6.74), ("13B", 13.02), ("34B", 33.74), ("70B", 68.98)]
)
def test_models_have_the_published_numbers_of_parameters(model: str, billions: float) -> None:
    from papers_job import MODELS

    assert MODELS[model].num_parameters / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize(
    ("first_ranks", "kind"),
    [
        ((0, 0, 0, 0), "Colocated"),
        ((0, 8, 0, 8), "Split"),
        ((0, 8, 8, 0), None),
        ((0, 8, 0, 0), None),
        ((0, 8, 16, 24), "Standalone"),
    ],
)
def test_placements_have_the_papers_names(first_ranks: tuple[int, ...], kind: str | None) -> None:
    from papers_placements import kind_of

    meshes = [Mesh(pool="pool", first_rank=first, data=8) for first in first_ranks]
    roles = dict(zip(ROLES, map(RoleStrategy, meshes), strict=True))
    assert kind_of(JobStrategy(roles, {"actor": EngineStrategy(meshes[0])})) == kind
    everywhere = EngineStrategy(Mesh(pool="pool", data=32))
    assert kind_of(JobStrategy(roles, {"actor": everywhere})) is None


@pytest.mark.parametrize("model", ["7B", "13B", "34B", "70B"])
def test_schemes_receive_the_bytes_of_table_2(model: str) -> None:
    from papers_job import MODELS
    from papers_transitions import ENGINE_TENSOR, STAGES, transitions

    size, (t, p, engine) = (
        MODELS[model].num_parameters * 2,
        (8, STAGES[model], ENGINE_TENSOR[model]),
    )
    gathering, replicas, ours = (
        transition.received_bytes / size for transition in transitions(model, 128)
    )
    assert gathering == pytest.approx(127 / 128)
    assert replicas == pytest.approx((t * p - 1) / (t * p))
    # The table has equal stages; embedding and output projection are at the ends of a pipeline.
    assert ours == pytest.approx((t * p - engine) / (engine * t * p), rel=0.02)


def test_a_choice_agrees_if_it_is_the_same_and_is_near_within_five_per_cent() -> None:
    from papers_verdict import same_choice

    seconds = {"a": 100.0, "b": 104.0, "c": 106.0}
    assert [same_choice(choice, seconds) for choice in "abcd"] == [
        "agrees",
        "near",
        "disagrees",
        "disagrees",
    ]


def test_shares_agree_within_ten_points() -> None:
    from papers_verdict import same_share

    assert same_share(0.55, 0.60) == "agrees"
    assert same_share(0.6, 0.12) == "disagrees"


def test_a_gain_is_the_heuristics_extra_time() -> None:
    from papers_placements import Comparison
    from papers_search import gain

    from rlhf_planner.search.branch_and_bound import SearchResult

    best = SearchResult(None, 100.0, 90.0, 1, 1)
    assert gain(Comparison({}, best, {"Megatron heuristic": 126.0}, 1.0)) == pytest.approx(0.26)
    assert gain(Comparison({}, best, {"Colocated": 126.0}, 1.0)) is None
