"""One job under several placements and cuts: the same numbers, on parts of pools and on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.calls import IDLE
from rlhf_api.mesh import Mesh
from rlhf_api.plan import Plan
from rlhf_api.spec.models import BuiltinModel, TrainingEngineType
from rlhf_planner.memory.engine_groups import TrainedModel, kept_bytes, weight_bytes
from rlhf_planner.problem.model_shapes import BUILTIN_MODELS

from ..timelines import overlapping_steps
from .cli import Finished, run
from .exports import assert_exports_own_model
from .manifests import example
from .records import records, step_metrics, without_pace

pytestmark = pytest.mark.ray

# Cuts round differently. With this epsilon gradients that are zero but for rounding do not matter.
CHANGES: dict[str, Any] = {
    "algorithm": {"ppo": {"klCoefficient": 0.05}},
    "checkpoint": {"everySteps": 1},
    "models": {role: {"training": {"adamEpsilon": 1e-6}} for role in ("actor", "critic")},
    "rollout": {"samplesPerPrompt": 2},
    "schedule": {"steps": 3, "miniBatchPrompts": 4},
}
"""A critic and a reference, both from the actor's weights after its warm start."""

COMPARED = (
    *("actor/loss", "actor/gradient_norm", "actor/entropy", "critic/loss", "critic/gradient_norm"),
    *("critic/value_mean", "critic/explained_variance", "reward/kl", "reward/mean"),
)
INDEPENDENT = (("actor.train", "critic.train"), ("reference.log_probs", "critic.values"))
"""Calls that do not depend on each other, and share no device where roles are split."""
EXACT_MATCH = "rlhf_runtime.rewards.exact_match:score"
TRAINED = {"roles": ["actor", "reference"]}
CRITIC = {"roles": ["critic"]}
GENERATION = {"roles": ["actor"], "calls": ["Generate"]}


def placed(scratch: Path, name: str, groups: list[dict[str, Any]], *words: object) -> Finished:
    return placed_by(scratch, name, {"type": "Manual", "groups": groups} if groups else {}, *words)


def placed_by(
    scratch: Path, name: str, placement: dict[str, Any], *words: object, **sections: Any
) -> Finished:
    sections = {**sections, "placement": placement}
    finished = run(
        example("02", scratch / f"{name}.yaml", CHANGES, sections), scratch / name, *words
    )
    assert finished.code == 0, finished.output
    return finished


@pytest.fixture(scope="module")
def colocated(scratch: Path) -> Finished:
    """The job on one rank."""
    return placed(scratch, "colocated", [])


def assert_same(finished: Finished, expected: Finished, num_steps: int = 3) -> None:
    expected_steps = step_metrics(expected.folder)[:num_steps]
    steps = list(zip(step_metrics(finished.folder), expected_steps, strict=True))
    assert len(steps) == num_steps
    for number, (got, reference) in enumerate(steps, start=1):
        for name in COMPARED:
            assert got[name] == pytest.approx(reference[name], rel=1e-4, abs=1e-5), (number, name)


@pytest.mark.nightly  # the tests below have a critic on fewer ranks, and on others
def test_a_critic_on_one_rank_of_the_actors_two(scratch: Path, colocated: Finished) -> None:
    groups = [TRAINED, CRITIC | {"firstDevice": 1}]
    assert_same(placed(scratch, "overlapping", groups, "--devices", 2), colocated)


@pytest.mark.nightly  # test_transition.py has such engines, the next tests kills of apart ranks
def test_engines_of_two_ranks_that_are_not_neighbours(scratch: Path, colocated: Finished) -> None:
    # On four ranks: {0,2} and {1,3}, which the plan chooses. Responses and moved bytes are as
    # planned, and a killed rank leaves nothing behind.
    sections = {"rollout": {"parallelism": {"tensor": 2}}}
    manifest = example("02", scratch / "strided.yaml", CHANGES, sections)
    words = ("--devices", 4, "--inject", "kill:rank=2,phase=generate,step=3")
    finished = run(manifest, scratch / "strided", *words)
    assert finished.code == 0, finished.output
    plan = Plan.model_validate_json((finished.folder / "plan.json").read_text())
    (generation,) = plan.generations
    assert generation.mesh.tensor_groups == ((0, 2), (1, 3))
    assert_same_at_last(finished, colocated)
    trained = TrainedModel(
        BUILTIN_MODELS[BuiltinModel.TINY_LLAMA],
        mesh_of(plan, "actor"),
        4,
        TrainingEngineType.FSDP,
    )
    sent = weight_bytes(trained, generation.mesh) - kept_bytes(trained, generation.mesh)
    counted = ("response/length_mean", "response/empty", "response/truncated", "reward/digits")
    last = last_metrics(finished)
    for number, expected in enumerate(step_metrics(colocated.folder), start=1):
        got = last[number]
        assert [got[name] for name in counted] == [expected[name] for name in counted]
        # The first step generates with weights of the warm start.
        assert got.get("throughput/transition_bytes", sent) == sent
    assert last[3]["throughput/transition_bytes"] == sent


def last_metrics(finished: Finished) -> dict[int, dict[str, float]]:
    """Metrics by step; of repeated steps the last ones."""
    return {record["step"]: record["metrics"] for record in records(finished.folder, "step")}


def assert_same_at_last(finished: Finished, expected: Finished) -> None:
    last = last_metrics(finished)
    for number, reference in enumerate(step_metrics(expected.folder), start=1):
        for name in COMPARED:
            assert last[number][name] == pytest.approx(reference[name], rel=1e-4, abs=1e-5), name


def mesh_of(plan: Plan, role: str) -> Mesh:
    planned = plan.role(role)
    assert planned is not None and planned.mesh is not None
    return planned.mesh


def test_two_pools_and_a_kill_in_the_second(scratch: Path, colocated: Finished) -> None:
    # The policy is not in the first pool. After the kill both pools load their part.
    groups = [CRITIC | {"pool": "critics"}, TRAINED | {"pool": "actors"}]
    finished = placed(scratch, "apart", groups, "--inject", "kill:rank=1,phase=train,step=3")
    assert (finished.folder / "model" / "model.safetensors").is_file()
    assert [record["step"] for record in records(finished.folder, "step")][:2] == [1, 2]
    assert_same_at_last(finished, colocated)


def test_the_policy_generates_on_the_critics_ranks_and_is_trained_on_others(
    scratch: Path, colocated: Finished
) -> None:
    # Trained on {0,1}, it generates on {2,3}, of which one is killed in the transition.
    groups = [
        TRAINED | {"devices": 2},
        GENERATION | {"firstDevice": 2, "tensor": 2},
        CRITIC | {"firstDevice": 2},
    ]
    words = ("--devices", 4, "--inject", "kill:rank=3,phase=transition,step=3")
    finished = placed(scratch, "elsewhere", groups, *words)
    assert (finished.folder / "logs" / "kill-3-transition-3.struck").exists()
    assert_same_at_last(finished, colocated)
    plan = Plan.model_validate_json((finished.folder / "plan.json").read_text())
    (generation,) = plan.generations
    assert (generation.mesh.tensor_groups, mesh_of(plan, "actor").ranks) == (((2, 3),), range(2))
    sent = [metrics.get("throughput/transition_bytes") for metrics in step_metrics(finished.folder)]
    model = BUILTIN_MODELS[BuiltinModel.TINY_LLAMA]
    trained = TrainedModel(
        model, mesh_of(plan, "actor"), 4, TrainingEngineType.FSDP, generation_mesh=generation.mesh
    )
    assert sent[-1] == weight_bytes(trained, generation.mesh)


def test_calls_with_meshes_cuts_and_engines_of_their_own(
    scratch: Path, colocated: Finished
) -> None:
    # Megatron trains the policy with two tensor ranks. FSDP computes critic and reference on one
    # rank each; there the policy generates, with two tensor ranks. A rank between them has no role.
    groups = [
        {"roles": ["actor"], "devices": 2, "tensor": 2},
        GENERATION | {"firstDevice": 3, "devices": 2, "tensor": 2},
        CRITIC | {"firstDevice": 3, "devices": 1},
        {"roles": ["reference"], "firstDevice": 4, "devices": 1},
    ]
    reference = {"source": {"sameAs": "actor"}, "training": {"engine": "FSDP"}}
    models = {"actor": {"training": {"engine": "Megatron"}}, "reference": reference}
    placement = {"type": "Manual", "groups": groups}
    words = ("--devices", 5, "--steps", 2)
    finished = placed_by(scratch, "mixed", placement, *words, models=models)
    assert_same(finished, colocated, num_steps=2)
    plan = Plan.model_validate_json((finished.folder / "plan.json").read_text())
    assert plan.num_devices == 5 and plan.device_memory("local", 2).phases == (IDLE,)
    meshes = {role: mesh_of(plan, role) for role in ("actor", "critic", "reference")}
    (generation,) = plan.generations
    assert {role: (tuple(mesh.ranks), mesh.tensor) for role, mesh in meshes.items()} == {
        "actor": ((0, 1), 2),
        "critic": ((3,), 1),
        "reference": ((4,), 1),
    }
    assert generation.mesh.tensor_groups == ((3, 4),)
    engines = {planned.role: planned.engine for planned in plan.roles if planned.engine}
    assert engines == {
        "actor": TrainingEngineType.MEGATRON,
        "critic": TrainingEngineType.FSDP,
        "reference": TrainingEngineType.FSDP,
    }
    trained = TrainedModel(
        BUILTIN_MODELS[BuiltinModel.TINY_LLAMA],
        meshes["actor"],
        4,
        TrainingEngineType.MEGATRON,
        generation_mesh=generation.mesh,
    )
    sent = weight_bytes(trained, generation.mesh)
    assert step_metrics(finished.folder)[-1]["throughput/transition_bytes"] == sent
    assert any(overlapping_steps(finished.folder, *calls) for calls in INDEPENDENT)


def test_a_job_resumes_under_other_placements_and_cuts(scratch: Path, colocated: Finished) -> None:
    # One step with generation also where only the critic is trained; one by Megatron on four ranks,
    # resharded to engines of one; one by FSDP with a rank for every role.
    file, folder = scratch / "another-placement.yaml", scratch / "another-placement"
    groups = [CRITIC | {"devices": 1}, TRAINED | {"firstDevice": 1}, GENERATION]
    split = {"placement": {"type": "Manual", "groups": groups}}
    reference = {"models": {"reference": {"source": {"sameAs": "actor"}}}}
    cut = {"training": {"engine": "Megatron", "parallelism": {"tensor": 2, "pipeline": 2}}}
    stages = {"models": dict.fromkeys(("actor", "reference", "critic"), cut)}
    steps = ((2, split), (4, stages), (3, {"placement": {"type": "Standalone"}}))
    for step, (devices, change) in enumerate(steps, start=1):
        manifest = example("02", file, CHANGES, reference, change)
        finished = run(manifest, folder, "--devices", devices, "--steps", step)
        assert finished.code == 0, finished.output
        if change is stages:
            assert_exports_own_model(folder, scratch / "from-stages")
    assert_same(finished, colocated)


def fused(threshold: int) -> dict[str, Any]:
    """Rollout with stage fusion."""
    # Engines of few rows: responses end one after the other.
    return {
        "maxConcurrentSequences": 4,
        "stageFusion": "Always",
        "stageFusionThreshold": threshold,
    }


@pytest.mark.nightly  # the test below has overlapping calls, and a kill
def test_calls_begin_before_the_last_response_has_ended(scratch: Path, colocated: Finished) -> None:
    # Reference and critic share no device with the only engine, so no row moves.
    groups = [
        {"roles": ["actor"], "devices": 1},
        {"roles": ["reference", "critic"], "firstDevice": 1, "devices": 1},
    ]
    placement = {"type": "Manual", "groups": groups}
    finished = placed_by(scratch, "fused-early", placement, "--devices", 2, rollout=fused(6))
    assert_same(finished, colocated)
    assert overlapping_steps(finished.folder, "actor.finish", "reference.log_probs")


def test_responses_that_another_engine_finishes_are_the_same_after_a_kill(scratch: Path) -> None:
    # The second of two engines leaves its rows to the first, and is killed in step 4. The
    # checkpoint is of step 2, so step 3 is repeated.
    groups = [
        {"roles": ["actor"], "devices": 1},
        {"roles": ["reference", "critic"], "firstDevice": 1, "devices": 1},
        GENERATION,
    ]
    finished = placed_by(
        scratch,
        "fused-moved",
        {"type": "Manual", "groups": groups},
        *("--devices", 2, "--steps", 4, "--inject", "kill:rank=1,phase=generate,step=4"),
        # The tokens that sampling kept move with the responses.
        rollout=fused(15) | {"maxResponseTokens": 24, "topP": 0.9},
        checkpoint={"everySteps": 2},
        rewards=[{"function": {"entrypoint": EXACT_MATCH, "batchSize": 1}}],
    )
    assert overlapping_steps(finished.folder, "actor.finish", "critic.values")
    # Responses are scored as they end, wherever they do.
    for call in ("actor.generate", "actor.finish"):
        assert overlapping_steps(finished.folder, call, "reward.score_early"), call
    steps = records(finished.folder, "step")
    assert [record["step"] for record in steps] == [1, 2, 3, 3, 4]
    first, again = (without_pace(record["metrics"]) for record in steps[2:4])
    assert first == again
    assert all(record["metrics"]["actor/log_prob_difference_max"] < 1e-4 for record in steps)
