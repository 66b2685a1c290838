"""A manifest's graph of a custom algorithm: planned by without its code, compared where that is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.changes import manifest_digest, refused_changes, spec_document
from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.document.manifest_graph import build_manifest_graph, lacks_code, matches_settings
from rlhf_flow.errors import InvalidAlgorithm, InvalidGraph, ManifestOutdated
from rlhf_flow.jobs.job_graphs import graphs_without_code, trace_algorithms, trace_job

from .conftest import make_job

SOURCE = """
from rlhf_flow import Algorithm, ClippedLoss, LanguageModel, RewardSource
from rlhf_flow.step.operations import Custom, GroupAdvantages, Scope

def seen(columns, state):
    raise NotImplementedError

class Mine(Algorithm):
    def __init__(self, temperature=1.0):
        self.temperature = temperature

    def roles(self):
        return {"actor": LanguageModel, "reference": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        seen = Custom("far_away:seen", ["reward_scores"], ["lines"], scope=Scope.BATCH,
                      keeps={"seen": 0.0})
        flow.save(flow.compute(batch, seen), "seen")
        flow.actor.train(batch, ClippedLoss("reward_valid"))
        flow.every(10, lambda: flow.reference.copy_weights_from(flow.actor))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file with an algorithm, on the Python path as far_away."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "far_away.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop("far_away", None)


def rewritten(path: Path, old: str, new: str) -> None:
    """Change the code, as an editor does between two commands."""
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    sys.modules.pop("far_away", None)


def own(parameters: dict[str, Any] | None = None, **sections: Any) -> RLHFJob:
    custom = {"entrypoint": "far_away:Mine", "parameters": parameters or {}}
    data = {"train": {"builtin": "SortDigits"}}
    sections = {"data": data, "schedule": SCHEDULE} | sections
    return make_job(algorithm={"type": "Custom", "custom": custom}, **sections)


SCHEDULE = {"steps": 10, "promptsPerStep": 16, "warmStart": {"maxSteps": 5}}


def filled(job: RLHFJob) -> RLHFJob:
    """The job with the graph of its code."""
    step = trace_algorithms(job)[GraphName.STEP]
    return with_graph(job, build_manifest_graph(job, step.algorithm, step.graph))


def with_graph(job: RLHFJob, graph: Any) -> RLHFJob:
    algorithm = job.spec.algorithm.model_copy(update={"graph": graph})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"algorithm": algorithm})})


def test_all_graphs_follow_without_importing_anything(module: Path) -> None:
    job = filled(own())
    traced = trace_job(job)
    sys.modules.pop("far_away")
    module.unlink()
    assert [*traced] == [GraphName.WARM_START, GraphName.EVALUATION, GraphName.STEP]
    assert graphs_without_code(job) == traced
    assert "far_away" not in sys.modules
    assert lacks_code(job)


def test_a_graph_may_read_the_mask_of_the_datas_answers() -> None:
    custom = {"entrypoint": "tests.runs.user_code.algorithms:Imitate"}
    train = {"path": "a", "promptField": "m", "answerField": "m", "trainOn": "AllAnswers"}
    job = make_job(
        algorithm={"type": "Custom", "custom": custom},
        models={"student": {"source": {"builtin": "TinyLlama"}}},
        data={"train": train},
        rewards=[],
    )
    graphs = graphs_without_code(filled(job))
    assert graphs == trace_job(job)
    assert "response_mask" in graphs[GraphName.STEP].inputs.prompts


def test_presets_are_traced_without_code_as_ever() -> None:
    assert graphs_without_code(make_job()) == trace_job(make_job())


def test_code_that_makes_another_graph_is_an_error_that_says_what_and_why(module: Path) -> None:
    job = filled(own())
    rewritten(module, "flow.actor.generate(prompts)", "flow.actor.generate(prompts, samples=2)")
    said = (
        r"is not that of far_away:Mine \(its code has changed since\): got "
        r"calls\[0\].rows.expected 4.0, allowed 2.0, as the code says; run `rlhf fill FILE`"
    )
    with pytest.raises(ManifestOutdated, match=said) as refused:
        trace_job(job)
    assert refused.value.location == ("spec", "algorithm", "graph")


def test_a_comment_in_the_code_changes_no_graph(module: Path) -> None:
    job = filled(own())
    rewritten(module, "class Mine", "# as in the paper\nclass Mine")
    assert trace_job(job) == trace_job(own())
    assert filled(own()).spec.algorithm.graph != job.spec.algorithm.graph, "but its digest"


def test_a_role_that_was_renamed_is_noticed(module: Path) -> None:
    job = filled(own())
    for quote in ('"reference"', "flow.reference"):
        rewritten(module, quote, quote.replace("reference", "anchor"))
    with pytest.raises(
        ManifestOutdated, match=r"got roles\[1\].name \"reference\", allowed \"anch"
    ):
        trace_job(job)


def test_calls_that_come_are_named(module: Path) -> None:
    job = filled(own())
    rewritten(module, "flow.actor.train(", "flow.reference.log_probs(batch); flow.actor.train(")
    with pytest.raises(ManifestOutdated, match=r'got calls \["actor.generate", .*"reference.log_p'):
        trace_job(job)


@pytest.mark.parametrize(
    "sections",
    [
        {"parameters": {"temperature": 0.5}},
        {"rollout": {"samplesPerPrompt": 8}},
        {"data": {"train": {"path": "a.jsonl"}}, "schedule": {"steps": 1, "promptsPerStep": 16}},
        {"rewards": [{"name": "other", "function": {"entrypoint": "verifiers:exact"}}]},
        {"data": {"train": {"builtin": "SortDigits"}, "pretraining": {"path": "texts.jsonl"}}},
    ],
    ids=["parameters", "samples", "form of the data", "rewards", "pretraining"],
)
def test_a_graph_of_other_settings_is_known_for_one_without_code(
    module: Path, sections: dict[str, Any]
) -> None:
    job = filled(own())
    graph = job.spec.algorithm.graph
    assert matches_settings(job)
    assert not matches_settings(with_graph(own(**sections), graph))


@pytest.mark.parametrize("sections", [{"schedule": {**SCHEDULE, "steps": 99}}, {"suspend": True}])
def test_other_settings_leave_it_as_it_is(module: Path, sections: dict[str, Any]) -> None:
    graph = filled(own()).spec.algorithm.graph
    assert matches_settings(with_graph(own(**sections), graph))


def test_whole_numbers_are_the_same_as_kubernetes_stores_them(module: Path) -> None:
    graph = filled(own({"temperature": 1.0})).spec.algorithm.graph
    assert matches_settings(with_graph(own({"temperature": 1}), graph))


def test_parameters_that_change_no_call_need_no_new_graph_where_the_code_is(module: Path) -> None:
    graph = filled(own()).spec.algorithm.graph
    assert GraphName.STEP in trace_job(with_graph(own({"temperature": 0.5}), graph))


def test_a_typing_error_in_the_entry_point_is_not_hidden_by_the_graph(module: Path) -> None:
    job = filled(own())
    custom = job.spec.algorithm.custom.model_copy(update={"entrypoint": "far_awy:Mine"})  # type: ignore[union-attr]
    algorithm = job.spec.algorithm.model_copy(update={"custom": custom})
    wrong = job.model_copy(update={"spec": job.spec.model_copy(update={"algorithm": algorithm})})
    assert not lacks_code(wrong)
    with pytest.raises(InvalidAlgorithm, match="no such module for the algorithm: got far_awy"):
        trace_job(wrong)


def test_data_that_the_job_does_not_have_are_named(module: Path) -> None:
    graph = filled(own()).spec.algorithm.graph
    assert graph is not None
    source = {"source": "prompts", "fields": ["preference"]}
    first = graph.calls[0]
    sources = (first.sources[0].model_validate(source), *first.sources[1:])
    calls = (first.model_copy(update={"sources": sources}), *graph.calls[1:])
    hostile = with_graph(own(), graph.model_copy(update={"calls": calls}))
    with pytest.raises(InvalidGraph, match="do not have: got preference, allowed prompt_id"):
        graphs_without_code(hostile)


def test_what_is_filled_in_later_restarts_nothing_and_is_no_refused_change(module: Path) -> None:
    before = own()
    after = filled(before)
    assert manifest_digest(after.spec) == manifest_digest(before.spec)
    assert refused_changes(spec_document(before.spec), spec_document(after.spec)) == []
