"""Graphs written for a manifest and read again are the same, of every algorithm there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.algorithm_graph import AlgorithmGraph, GraphTerm
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow.document.graph_document import read_graph, write_graph
from rlhf_flow.document.term_document import read_loss, read_operation, write_term
from rlhf_flow.errors import InvalidGraph
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.step.columns import Kind
from rlhf_flow.step.losses import ClippedLoss
from rlhf_flow.step.operations import Custom, PassAtK, Scope, WeightedSum
from rlhf_flow.step.roles import LanguageModel
from rlhf_flow.trace.graph import Graph

from ..depth import examples
from .conftest import make_job
from .test_presets import MANIFESTS

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
OWN = {
    "Reinforce": {"parameters": {"baseline": 0.5}},
    "Rloo": {},
    "Refill": {"parameters": {"prompts": 4}},
    "CatchUp": {},
    "Distill": {},
}
"""Those of tests/runs: own operations and protocols, rounds, saved lines, a part in some steps."""
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
NUMBERS = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)


def as_kubernetes_stores(value: Any) -> Any:
    """What comes back from an API server: maps in another order, 1.0 as 1."""
    if isinstance(value, dict):
        return {key: as_kubernetes_stores(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [as_kubernetes_stores(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def stored(document: AlgorithmGraph | GraphTerm) -> Any:
    text = document.model_dump_json(by_alias=True, exclude_defaults=True)
    kind = type(document)
    return kind.model_validate_json(json.dumps(as_kubernetes_stores(json.loads(text))), strict=True)


def require_same(graph: Graph) -> None:
    written = write_graph(graph, code_digest="0" * 16, settings_digest="f" * 16)
    assert read_graph(stored(written)) == graph


def graphs_of(*jobs: RLHFJob) -> list[Graph]:
    return [graph for job in jobs for graph in trace_job(job).values()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_graphs_of_every_example_come_back(path: Path) -> None:
    for graph in graphs_of(*load_file(path)):
        require_same(graph)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("PPO", {"klCoefficient": 0.05}),
        ("PPO", {"klCoefficient": 0.0, "epochsPerBatch": 2}),
        ("GRPO", {"klCoefficient": 0.1, "objective": "CISPO"}),
        ("DAPO", {}),
        ("RLOO", {"klCoefficient": 0.1}),
        *((name, {}) for name in ("OPO", "REINFORCEPlusPlus", "ReMax", "SafeRLHF", "DPO")),
        *((name, {}) for name in ("OnlineDPO", "SFT", "RewardModel")),
    ],
)
def test_so_do_those_of_every_preset(kind: str, settings: dict[str, Any]) -> None:
    algorithm = {"type": kind, AlgorithmType(kind).settings_field: settings}
    for graph in graphs_of(make_job(algorithm=algorithm, **MANIFESTS.get(kind, {}))):
        require_same(graph)


@pytest.mark.parametrize(("name", "custom"), OWN.items())
def test_so_do_those_of_own_algorithms(name: str, custom: Mapping[str, Any]) -> None:
    entrypoint = f"tests.runs.user_code.algorithms:{name}"
    algorithm = {"type": "Custom", "custom": {"entrypoint": entrypoint, **custom}}
    for graph in graphs_of(make_job(algorithm=algorithm)):
        require_same(graph)


def test_a_score_of_models_and_verifiers_comes_back() -> None:
    rewards = [
        {"name": "exact", "function": {"entrypoint": "verifiers:exact"}},
        {"name": "style", "weight": 0.5, "model": {"path": "/style"}},
        {"name": "tone", "weight": -1, "model": {"path": "/tone", "tokenizer": "Own"}},
    ]
    graphs = graphs_of(make_job(rewards=rewards))
    assert {"tone_model.scores_of_texts", "style_model.scores"} <= {
        call.id for graph in graphs for call in graph.calls
    }
    for graph in graphs:
        require_same(graph)


@settings(max_examples=examples(60), deadline=None)
@given(
    terms=st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=4),
    parameters=st.dictionaries(NAMES, st.booleans() | NUMBERS | st.text(max_size=8), max_size=3),
    reads=st.lists(NAMES, max_size=12),
    writes=st.lists(NAMES, min_size=1, max_size=3, unique=True),
    keeps=st.dictionaries(NAMES, NUMBERS, max_size=2),
    ks=st.lists(st.integers(1, 64), min_size=1, max_size=12),
)
def test_settings_of_lists_and_maps_come_back(
    terms: dict[str, float],
    parameters: dict[str, Any],
    reads: list[str],
    writes: list[str],
    keeps: dict[str, float],
    ks: list[int],
) -> None:
    operations = (
        WeightedSum(terms, scores="total_scores", valid="total_valid"),
        PassAtK("reward_scores", "reward_valid", ks=tuple(ks)),
        Custom(
            "own.code:function",
            reads,
            writes,
            {name: each for name, each in parameters.items() if name != "state"},
            Scope.BATCH,
            {writes[0]: Kind.SCORES},
            keeps,
        ),
    )
    for operation in operations:
        assert read_operation(stored(write_term(operation))) == operation


def test_a_role_that_derives_from_a_known_one_is_written_as_that() -> None:
    class Sampler(LanguageModel):
        """A language model by another name."""

    (graph,) = graphs_of(make_job())
    roles = {**graph.roles, "actor": Sampler}
    changed = Graph(**{**vars(graph), "roles": roles})
    written = write_graph(changed, code_digest="0" * 16, settings_digest="0" * 16)
    assert read_graph(written).roles["actor"] is LanguageModel


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (GraphTerm(type="ClipedLoss"), "no such loss: got ClipedLoss, .* did you mean ClippedLoss"),
        (GraphTerm(type="ClippedLoss"), "ClippedLoss cannot have this valid: got nothing"),
        (
            GraphTerm(type="ClippedLoss", settings={"valid": "v", "clip": 1}),
            "cannot have this clip: got a setting of another name, allowed valid, ",
        ),
        (
            GraphTerm(type="ClippedLoss", settings={"valid": "v", "objective": "BEST"}),
            "cannot have this objective: got 'BEST', allowed CLIPPED",
        ),
        (
            GraphTerm(type="ClippedLoss", settings={"valid": "v", "clip_range": "wide"}),
            "cannot have this clip_range: got 'wide', allowed float",
        ),
        (
            GraphTerm(type="ClippedLoss", settings={"valid": "v", "epochs_per_batch": True}),
            "cannot have this epochs_per_batch: got True, allowed int",
        ),
        (
            GraphTerm(type="ClippedLoss", settings={"valid.0": "v"}),
            "cannot have this valid: got 0, allowed one value",
        ),
        (
            GraphTerm(type="ClippedLoss", settings={"valid": "v", "clip_range": -1}),
            "cannot have this clip_range: got clip_range=-1.0, allowed a number of at least 0",
        ),
    ],
)
def test_settings_that_no_loss_has_are_refused(term: GraphTerm, said: str) -> None:
    with pytest.raises(InvalidGraph, match=said):
        read_loss(term)


def test_whole_numbers_stand_for_others() -> None:
    read = read_loss(GraphTerm(type="ClippedLoss", settings={"valid": "v", "clip_range": 1}))
    assert isinstance(read, ClippedLoss) and read.clip_range == 1.0
    assert isinstance(read.clip_range, float)


@pytest.mark.parametrize(
    ("read", "type", "estimator"),
    [
        (read_loss, "ClippedLoss", KlEstimator.K3),
        (read_operation, "TokenRewards", KlEstimator.K1),
        (read_operation, "PenalizedScores", KlEstimator.K1),
    ],
)
def test_penalties_that_were_stored_without_an_estimator_have_the_former_default(
    read: Callable[[GraphTerm], Any], type: str, estimator: KlEstimator
) -> None:
    values: dict[str, Any] = {"kl_coefficient": 0.1, "reference_log_probs": "reference_log_probs"}
    values |= {"valid": "v"} if type == "ClippedLoss" else {"scores": "s"}
    term = GraphTerm(type=type, settings=values)
    assert read(term).kl_estimator is estimator
    named = GraphTerm(type=type, settings={**values, "kl_estimator": "K2"})
    assert read(named).kl_estimator is KlEstimator.K2


def test_settings_that_a_manifest_cannot_hold_are_told() -> None:
    long = Custom("own.code:function", ["a"], ["b"], {"text": "x" * 2000})
    with pytest.raises(InvalidGraph, match="a setting of Custom that a manifest cannot hold"):
        write_term(long)
