"""Lines that a step saves: a call like any other, which no rank runs."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_flow import Algorithm, BatchValue, Dpo, Flow, LanguageModel, RewardSource, Roles
from rlhf_flow.errors import FlowError
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.jobs.lint import lint_job
from rlhf_flow.step.calls import SaveOptions
from rlhf_flow.step.operations import BestAgainstWorst, Custom, PairLines
from rlhf_flow.trace.graph import Graph
from rlhf_flow.trace.picture import draw_text
from rlhf_flow.trace.tracing import trace
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import local_inventory

ONLINE = {"type": "OnlineDPO", "onlineDPO": {"savePairs": True}}


class Saving(Algorithm):
    """Trains on pairs, and saves what it is told to."""

    def __init__(self, made: str = "lines", name: Any = "pairs") -> None:
        self.made, self.name = made, name

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reference": LanguageModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, BestAgainstWorst("reward_scores", "reward_valid"))
        batch |= flow.reference.log_probs(batch)
        flow.actor.train(batch, Dpo("reference_log_probs"))
        flow.save(flow.compute(batch, PairLines("reward_scores", lines=self.made)), self.name)
        flow.every(5, lambda: flow.save(flow.compute(batch, PairLines("reward_scores")), "some"))


def step_of(job: Any, **sections: Any) -> Graph:
    return trace_job(job(**sections))[GraphName.STEP]


def test_online_dpo_saves_its_pairs_after_training_on_them(job: Any) -> None:
    without = step_of(job, algorithm={"type": "OnlineDPO"})
    graph = step_of(job, algorithm=ONLINE)
    added = [call.id for call in graph.calls if call not in without.calls]
    assert added == ["compute#2", "save"] == [call.id for call in graph.calls[-2:]]
    assert graph.call("save").options == SaveOptions("pairs")
    (edge,) = (each for each in graph.data_edges if each.target == "save")
    assert (edge.source, edge.columns) == ("compute#2", ("lines",))


def test_the_prompt_of_a_pair_is_in_the_field_that_the_data_name(job: Any) -> None:
    data = {"train": {"path": "rows.jsonl", "promptField": "question"}}
    graph = step_of(job, algorithm=ONLINE, data=data)
    (made,) = graph.call("compute#2").options.operations  # type: ignore[union-attr]
    assert made.prompt_field == "question"


def test_no_rank_runs_it_and_nothing_is_odd_about_it(job: Any) -> None:
    made = job(algorithm=ONLINE)
    graphs, plan = make_plan(made, [local_inventory(2, 2**35)])
    planned = plan.call(GraphName.STEP, "save")
    assert planned is not None and planned.kind is CallKind.SAVE and planned.mesh is None
    assert planned.off_rank_process == "driver"
    assert not lint_job(made, graphs, plan.device)


def test_a_picture_says_what_is_kept() -> None:
    drawn = draw_text(trace(Saving()))
    assert "  keeps it as pairs\n     <- compute#2: lines" in drawn
    assert "  keeps it as some  x 0.2\n" in drawn


def test_lines_that_nobody_wrote_are_told_with_who_can_write_them() -> None:
    with pytest.raises(FlowError, match=r"save reads the column lines.*PairLines\(\.\.\.\)\)"):
        trace(Saving(made="pair_texts"))


@pytest.mark.parametrize("name", ["../up", "a/b", "", "step 1", None, 3])
def test_a_name_is_that_of_a_folder(name: Any) -> None:
    with pytest.raises(FlowError, match=r"save.*name.*allowed letters of ASCII"):
        trace(Saving(name=name))


def test_what_is_saved_is_text() -> None:
    class Wrong(Saving):
        def step(self, flow: Flow, prompts: BatchValue) -> None:
            batch = flow.actor.generate(prompts)
            flow.save(batch.select("finished").rename(finished="lines"), "wrong")

    with pytest.raises(FlowError, match=r"got lines, which is true or false.*allowed a text"):
        trace(Wrong())


def test_lines_of_ones_own_are_texts(job: Any) -> None:
    made = Custom("mine:lines", ["record"], ["lines"])
    (output,) = made.outputs()
    assert output.kind is not None and output.kind.value == "a text per row"
