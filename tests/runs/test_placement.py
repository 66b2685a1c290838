"""One job under several placements and cuts: the same numbers, on parts of pools and on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.mesh import Mesh
from rlhf_api.plan import Plan
from rlhf_api.spec.models import BuiltinModel, TrainingEngineType
from rlhf_planner.memory.engine_groups import TrainedModel, kept_bytes, weight_bytes
from rlhf_planner.problem.model_shapes import BUILTIN_MODELS

from ..timelines import overlapping_steps
from .cli import Finished, run
from .exports import assert_exported_as_left
from .manifests import example
from .records import records, step_metrics, without_pace

pytestmark = pytest.mark.ray

CHANGES: dict[str, Any] = {
    "algorithm": {"ppo": {"klCoefficient": 0.05}},
    "checkpoint": {"everySteps": 1},
    "models": {role: {"training": {"adamEpsilon": 1e-6}} for role in ("actor", "critic")},
    "rollout": {"samplesPerPrompt": 2},
    "schedule": {"steps": 3, "miniBatchPrompts": 4},
}
"""A critic and a reference, both from the actor's weights after its warm start. Gradients that are
zero but for rounding do not matter under this epsilon: cuts round otherwise."""

COMPARED = (
    *("actor/loss", "actor/gradient_norm", "actor/entropy", "critic/loss", "critic/gradient_norm"),
    *("critic/value_mean", "critic/explained_variance", "reward/kl", "reward/mean"),
)
APART = (("actor.train", "critic.train"), ("reference.log_probs", "critic.values"))
"""Calls that need nothing of each other, and where roles are placed apart no device either."""
TRAINED = {"roles": ["actor", "reference"]}
CRITIC = {"roles": ["critic"]}
GENERATION = {"roles": ["actor"], "calls": ["Generate"]}


def placed(place: Path, name: str, groups: list[dict[str, Any]], *words: object) -> Finished:
    return placed_by(place, name, {"type": "Manual", "groups": groups} if groups else {}, *words)


def placed_by(
    place: Path, name: str, placement: dict[str, Any], *words: object, **sections: Any
) -> Finished:
    sections = {**sections, "placement": placement}
    made = run(example("02", place / f"{name}.yaml", CHANGES, sections), place / name, *words)
    assert made.code == 0, made.output
    return made


@pytest.fixture(scope="module")
def colocated(place: Path) -> Finished:
    """Everything on one rank."""
    return placed(place, "colocated", [])


def assert_same(made: Finished, expected: Finished, num_steps: int = 3) -> None:
    wanted_steps = step_metrics(expected.folder)[:num_steps]
    steps = list(zip(step_metrics(made.folder), wanted_steps, strict=True))
    assert len(steps) == num_steps
    for number, (got, wanted) in enumerate(steps, start=1):
        for name in COMPARED:
            assert got[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-5), (number, name)


@pytest.mark.nightly  # the tests below have a critic on fewer ranks, and on others
def test_a_critic_on_one_rank_of_the_actors_two(place: Path, colocated: Finished) -> None:
    groups = [TRAINED, CRITIC | {"firstDevice": 1}]
    assert_same(placed(place, "overlapping", groups, "--devices", 2), colocated)


@pytest.mark.nightly  # test_transition.py has such engines, the next tests kills of apart ranks
def test_engines_of_two_ranks_that_are_not_neighbours(place: Path, colocated: Finished) -> None:
    """On four ranks: {0,2} and {1,3}, which the plan chooses. The same responses are counted, as
    many bytes are moved as it chose by, and a rank that is killed leaves nothing behind."""
    sections = {"rollout": {"parallelism": {"tensor": 2}}}
    manifest = example("02", place / "strided.yaml", CHANGES, sections)
    words = ("--devices", 4, "--inject", "kill:rank=2,phase=generate,step=3")
    made = run(manifest, place / "strided", *words)
    assert made.code == 0, made.output
    plan = Plan.model_validate_json((made.folder / "plan.json").read_text())
    (generation,) = plan.generations
    assert generation.mesh.tensor_groups == ((0, 2), (1, 3))
    assert_same_at_last(made, colocated)
    trained = TrainedModel(
        BUILTIN_MODELS[BuiltinModel.TINY_LLAMA],
        mesh_of(plan, "actor"),
        4,
        TrainingEngineType.FSDP,
    )
    sent = weight_bytes(trained, generation.mesh) - kept_bytes(trained, generation.mesh)
    counted = ("response/length_mean", "response/empty", "response/truncated", "reward/digits")
    found = last_metrics(made)
    for number, wanted in enumerate(step_metrics(colocated.folder), start=1):
        got = found[number]
        assert [got[name] for name in counted] == [wanted[name] for name in counted]
        # A warm start has left what the first step generates with.
        assert got.get("throughput/transition_bytes", sent) == sent
    assert found[3]["throughput/transition_bytes"] == sent


def last_metrics(made: Finished) -> dict[int, dict[str, float]]:
    """By step, of those that were made twice the later ones."""
    return {record["step"]: record["metrics"] for record in records(made.folder, "step")}


def assert_same_at_last(made: Finished, expected: Finished) -> None:
    found = last_metrics(made)
    for number, wanted in enumerate(step_metrics(expected.folder), start=1):
        for name in COMPARED:
            assert found[number][name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-5), name


def mesh_of(plan: Plan, role: str) -> Mesh:
    planned = plan.role(role)
    assert planned is not None and planned.mesh is not None
    return planned.mesh


def test_two_pools_and_a_kill_in_the_second(place: Path, colocated: Finished) -> None:
    """The policy is not in the first pool; what was killed goes on from each pool's part."""
    groups = [CRITIC | {"pool": "critics"}, TRAINED | {"pool": "actors"}]
    made = placed(place, "apart", groups, "--inject", "kill:rank=1,phase=train,step=3")
    assert (made.folder / "model" / "model.safetensors").is_file()
    assert [record["step"] for record in records(made.folder, "step")][:2] == [1, 2]
    assert_same_at_last(made, colocated)


def test_the_policy_generates_beside_the_critic_and_is_trained_elsewhere(
    place: Path, colocated: Finished
) -> None:
    """Trained on {0,1}, it generates on {2,3}, of which one is killed while weights come."""
    groups = [
        TRAINED | {"devices": 2},
        GENERATION | {"firstDevice": 2, "tensor": 2},
        CRITIC | {"firstDevice": 2},
    ]
    words = ("--devices", 4, "--inject", "kill:rank=3,phase=transition,step=3")
    made = placed(place, "elsewhere", groups, *words)
    assert (made.folder / "logs" / "kill-3-transition-3.struck").exists()
    assert_same_at_last(made, colocated)
    plan = Plan.model_validate_json((made.folder / "plan.json").read_text())
    (generation,) = plan.generations
    assert (generation.mesh.tensor_groups, mesh_of(plan, "actor").ranks) == (((2, 3),), range(2))
    sent = [metrics.get("throughput/transition_bytes") for metrics in step_metrics(made.folder)]
    model = BUILTIN_MODELS[BuiltinModel.TINY_LLAMA]
    trained = TrainedModel(
        model, mesh_of(plan, "actor"), 4, TrainingEngineType.FSDP, generation_mesh=generation.mesh
    )
    assert sent[-1] == weight_bytes(trained, generation.mesh)


def test_calls_with_meshes_cuts_and_engines_of_their_own(place: Path, colocated: Finished) -> None:
    """The policy is trained by Megatron, cut by two. Critic and reference are FSDP's, on one rank
    each, and there the policy generates, cut by two."""
    groups = [
        {"roles": ["actor"], "devices": 2, "tensor": 2},
        GENERATION | {"firstDevice": 2, "tensor": 2},
        CRITIC | {"firstDevice": 2, "devices": 1},
        {"roles": ["reference"], "firstDevice": 3},
    ]
    reference = {"source": {"sameAs": "actor"}, "training": {"engine": "FSDP"}}
    models = {"actor": {"training": {"engine": "Megatron"}}, "reference": reference}
    placement = {"type": "Manual", "groups": groups}
    words = ("--devices", 4, "--steps", 2)
    made = placed_by(place, "mixed", placement, *words, models=models)
    assert_same(made, colocated, num_steps=2)
    plan = Plan.model_validate_json((made.folder / "plan.json").read_text())
    meshes = {role: mesh_of(plan, role) for role in ("actor", "critic", "reference")}
    (generation,) = plan.generations
    assert {role: (tuple(mesh.ranks), mesh.tensor) for role, mesh in meshes.items()} == {
        "actor": ((0, 1), 2),
        "critic": ((2,), 1),
        "reference": ((3,), 1),
    }
    assert generation.mesh.tensor_groups == ((2, 3),)
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
    assert step_metrics(made.folder)[-1]["throughput/transition_bytes"] == sent
    assert any(overlapping_steps(made.folder, *calls) for calls in APART)


def test_what_was_saved_goes_on_under_other_placements_and_cuts(
    place: Path, colocated: Finished
) -> None:
    """One step with generation also where only the critic is trained; one by Megatron on four
    ranks, resharded to engines of one; one by FSDP with a rank for every role."""
    file, folder = place / "another-placement.yaml", place / "another-placement"
    groups = [CRITIC | {"devices": 1}, TRAINED | {"firstDevice": 1}, GENERATION]
    apart = {"placement": {"type": "Manual", "groups": groups}}
    reference = {"models": {"reference": {"source": {"sameAs": "actor"}}}}
    cut = {"training": {"engine": "Megatron", "parallelism": {"tensor": 2, "pipeline": 2}}}
    stages = {"models": dict.fromkeys(("actor", "reference", "critic"), cut)}
    steps = ((2, apart), (4, stages), (3, {"placement": {"type": "Standalone"}}))
    for step, (devices, change) in enumerate(steps, start=1):
        manifest = example("02", file, CHANGES, reference, change)
        made = run(manifest, folder, "--devices", devices, "--steps", step)
        assert made.code == 0, made.output
        if change is stages:
            assert_exported_as_left(folder, place / "from-stages")
    assert_same(made, colocated)


def fused(threshold: int) -> dict[str, Any]:
    """Engines of few rows, which end one after the other."""
    return {
        "maxConcurrentSequences": 4,
        "stageFusion": "Always",
        "stageFusionThreshold": threshold,
    }


@pytest.mark.nightly  # the test below has overlapping calls, and a kill
def test_calls_begin_before_the_last_response_has_ended(place: Path, colocated: Finished) -> None:
    """Reference and critic are beside the only engine, where no row moves."""
    groups = [
        {"roles": ["actor"], "devices": 1},
        {"roles": ["reference", "critic"], "firstDevice": 1, "devices": 1},
    ]
    placement = {"type": "Manual", "groups": groups}
    made = placed_by(place, "fused-early", placement, "--devices", 2, rollout=fused(6))
    assert_same(made, colocated)
    assert overlapping_steps(made.folder, "actor.finish", "reference.log_probs")


def test_responses_that_another_engine_finishes_are_the_same_after_a_kill(place: Path) -> None:
    """The second of two engines leaves its rows to the first, and is killed in one step. The step
    before it was made already, and is made again."""
    groups = [
        {"roles": ["actor"], "devices": 1},
        {"roles": ["reference", "critic"], "firstDevice": 1, "devices": 1},
        GENERATION,
    ]
    made = placed_by(
        place,
        "fused-moved",
        {"type": "Manual", "groups": groups},
        *("--devices", 2, "--steps", 4, "--inject", "kill:rank=1,phase=generate,step=4"),
        rollout=fused(15) | {"maxResponseTokens": 24},
        checkpoint={"everySteps": 2},
    )
    assert overlapping_steps(made.folder, "actor.finish", "critic.values")
    steps = records(made.folder, "step")
    assert [record["step"] for record in steps] == [1, 2, 3, 3, 4]
    first, again = (without_pace(record["metrics"]) for record in steps[2:4])
    assert first == again
