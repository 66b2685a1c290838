"""Custom algorithms and local models, planned by what `rlhf fill` has written and nothing else."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.changes import manifest_digest
from rlhf_api.errors import RlhfError
from rlhf_api.plan import GraphName
from rlhf_api.reading.validation import validate_document
from rlhf_api.spec.job import RLHFJob
from rlhf_api.status import JobPhase
from rlhf_flow.document.manifest_graph import build_manifest_graph
from rlhf_flow.jobs.job_graphs import graphs_without_code, trace_algorithms
from rlhf_kube.kinds import Kind
from rlhf_operator.observe.parse import parse_job
from rlhf_operator.observe.planner import find_unknown, make_plan_result, plan_status
from rlhf_planner.plan import make_plan, pools_of

from ..rlhf_flow.hostile_graphs import broken
from .world import NAMESPACE, World, manifest

SOURCE = """
import booby_trap
from rlhf_flow import Algorithm, ClippedLoss, LanguageModel, RewardSource
from rlhf_flow.step.operations import Custom

class Mine(Algorithm):
    def __init__(self, scale):
        self.scale = scale

    def roles(self):
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts, samples=4)
        batch |= flow.reward.score(batch)
        own = Custom("mine_alone:scaled", ["reward_scores", "response_tokens"], ["advantages"],
                     {"scale": self.scale})
        batch |= flow.compute(batch, own)
        flow.actor.train(batch, ClippedLoss("reward_valid"))

def scaled(columns, scale):
    raise NotImplementedError
"""
PLANNED = 4
"""Hostile graphs that are also planned, which takes longer."""
POOLS = {"nodePools": [{"name": "v100", "devicesPerNode": 2, "gpu": "V100-32G"}]}
SHAPE = {
    "numLayers": 2,
    "hiddenSize": 128,
    "intermediateSize": 512,
    "numAttentionHeads": 4,
    "numKeyValueHeads": 4,
    "headDim": 32,
    "vocabSize": 64,
    "family": "Qwen2",
}


def document(graph: Any = None, scale: float = 2.0, **sections: Any) -> dict[str, Any]:
    custom = {"entrypoint": "mine_alone:Mine", "parameters": {"scale": scale}}
    algorithm = {"type": "Custom", "custom": custom} | ({"graph": graph} if graph else {})
    return manifest(algorithm=algorithm, resources=POOLS, **sections)


def job(*arguments: Any, **sections: Any) -> RLHFJob:
    """As the API server sends it: JSON, in which 2.0 is 2."""
    text = json.dumps(document(*arguments, **sections)).replace("2.0", "2")
    made, problems = validate_document(json.loads(text))
    assert made is not None, problems
    return made


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `rlhf fill` writes, on a machine where the code is."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "mine_alone.py").write_text(SOURCE)
    (folder / "booby_trap.py").write_text("")
    sys.path.insert(0, str(folder))
    try:
        step = trace_algorithms(RLHFJob.model_validate(document()))[GraphName.STEP]
        written = build_manifest_graph(
            RLHFJob.model_validate(document()), step.algorithm, step.graph
        )
    finally:
        sys.path.remove(str(folder))
        for name in ("mine_alone", "booby_trap"):
            sys.modules.pop(name, None)
    return written.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def test_a_custom_job_is_planned_without_importing_it(
    graph: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where a module of its name could be imported."""
    (tmp_path / "mine_alone.py").write_text("raise SystemExit('imported by the operator')")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = make_plan_result(job(graph))
    assert seen.plan is not None, seen
    assert "1 x 2 GPU of pool v100: actor" in seen.plan.summary
    assert "mine_alone" not in sys.modules


def test_its_plan_is_the_one_that_the_code_gives(
    graph: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_alone.py").write_text(SOURCE.replace("import booby_trap", ""))
    plain = job()
    _, plan = make_plan(plain, pools_of(plain))
    sys.modules.pop("mine_alone")
    assert make_plan_result(job(graph)).plan == plan_status(plan, plain.spec.placement.type)


def test_without_a_graph_the_command_that_writes_it_is_named() -> None:
    assert "`rlhf fill FILE`" in find_unknown(job())
    models = {"actor": {"source": {"path": "/models/mine"}}}
    told = find_unknown(RLHFJob.model_validate(manifest(models=models)))
    assert "`rlhf fill FILE`" in told and "spec.models.actor.shape" in told


def test_a_graph_of_other_parameters_is_no_reason_to_refuse(graph: Any) -> None:
    told = find_unknown(job(graph, 3.0))
    assert "traced with another entry point" in told and "`rlhf fill FILE` brings it up" in told


def test_a_hostile_graph_is_refused_as_such(graph: Any) -> None:
    hostile = json.loads(json.dumps(graph))
    hostile["calls"][1]["sources"][0]["source"] = "reward.score"
    seen = make_plan_result(job(hostile))
    assert seen.refusal is not None and seen.refusal.reason == "InvalidGraph"
    assert "reads from what does not come before it: got reward.score" in seen.refusal.message


def test_hostile_graphs_are_answered() -> None:
    """By the contract, by a refusal, or, where they could be a step's, by a plan."""
    chance, planned = random.Random(4), 0
    for _ in range(300):
        made, problems = validate_document(document(broken(chance)))
        if made is None:
            assert problems
            continue
        try:
            graphs_without_code(made)
        except RlhfError as error:
            assert str(error)
            continue
        planned += 1
        if planned <= PLANNED:
            seen = make_plan_result(made)
            assert seen.plan is not None or seen.refusal is not None
    assert planned > PLANNED


def test_a_graph_and_the_manifests_models_that_do_not_fit_are_refused(graph: Any) -> None:
    models = {"student": {"source": {"builtin": "TinyLlama"}}}
    seen = make_plan_result(job(graph, models=models))
    assert seen.refusal is not None and "a role without a model" in seen.refusal.message


def test_a_model_of_a_local_folder_is_planned_by_its_shape() -> None:
    models = {"actor": {"source": {"path": "/nowhere"}, "shape": SHAPE}}
    seen = make_plan_result(RLHFJob.model_validate(manifest(models=models, resources=POOLS)))
    assert seen.plan is not None, seen


def test_what_is_filled_in_while_it_trains_restarts_nothing(graph: Any, world: World) -> None:
    world.run_to_training()
    before = world.status()
    shaped = {"actor": {"source": {"builtin": "TinyLlama"}, "shape": SHAPE}}
    world.edit_job(models=shaped)
    world.settle()
    assert world.phase()[0] is JobPhase.RUNNING
    assert world.head().driver.stops == 0 and world.clusters() == ["sort-1"]
    assert world.status().cluster == before.cluster


def test_a_cluster_of_an_earlier_release_whose_manifest_has_a_shape_runs_on(world: World) -> None:
    """Its digest counts the shape, which changes no job any more."""
    shaped = {"actor": {"source": {"builtin": "TinyLlama"}, "shape": SHAPE}}
    world.run_to_training(manifest(models=shaped))
    raw = world.kube.objects[Kind.JOB, NAMESPACE, "sort"]
    seen = parse_job(raw, world.defaults).job
    assert seen is not None
    earlier = manifest_digest(seen.spec, with_shapes=True)
    assert earlier != manifest_digest(seen.spec)

    def of_earlier_release(job: dict[str, Any]) -> None:
        job["status"]["cluster"]["manifestDigest"] = earlier

    world.kube.edit(Kind.JOB, NAMESPACE, "sort", of_earlier_release)
    world.settle()
    assert world.phase()[0] is JobPhase.RUNNING and world.head().driver.stops == 0
