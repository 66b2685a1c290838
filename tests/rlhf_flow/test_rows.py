"""Which rows batches have: joins, regions, counts, rounds, rows of other data."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_flow import BatchValue, ClippedLoss, CrossEntropy, Flow
from rlhf_flow.errors import FlowError, InvalidAlgorithm
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.step.operations import Custom, GroupAdvantages, Scope
from rlhf_flow.trace.graph import RowCount
from rlhf_flow.trace.picture import draw_mermaid, draw_text
from rlhf_flow.trace.symbolic import Origin, Rows, SymbolicBatch
from rlhf_flow.trace.tracing import trace

from .conftest import MakeJob
from .stepped import Stepped, function


def test_batches_of_different_rows_are_not_joined() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        _ = prompts | flow.actor.generate(prompts, samples=2)

    with pytest.raises(FlowError, match="the prompts and the prompts x 2"):
        trace(Stepped(step))


def test_batches_of_equally_many_samples_can_be_joined() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        sampled = flow.actor.generate(prompts)
        greedy = flow.actor.generate(prompts, samples=4, greedy=True)
        _ = sampled | greedy.select("finished").rename(finished="greedy_finished")

    assert len(trace(Stepped(step), samples_per_prompt=4).calls) == 2


def test_the_later_batch_wins() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.reward.score(batch)
        flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))

    graph = trace(Stepped(step))
    sources = {edge.source for edge in graph.data_edges if edge.target == "compute"}
    assert sources == {"actor.generate", "reward.score#2"}


def test_responses_are_not_put_under_columns_of_others() -> None:
    """Scores, values and log-probabilities of the first would stay beside the second."""

    def step(flow: Flow, prompts: Any) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.actor.generate(prompts, greedy=True)

    with pytest.raises(
        FlowError, match=r"got \w+ of actor.generate#2 over that of actor.generate, .*rename"
    ):
        trace(Stepped(step))


def test_what_is_made_in_a_region_stays_in_it() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        kept = []
        flow.every(3, lambda: kept.append(flow.actor.generate(prompts)))
        flow.reward.score(kept[0])

    with pytest.raises(FlowError, match="made inside every-3, which does not run every time"):
        trace(Stepped(step))


def test_what_is_joined_with_another_regions_batch_stays_outside_of_both() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        batch = flow.actor.generate(prompts)
        kept: list[Any] = []

        def look() -> None:
            flow.actor.log_probs(batch | kept[0] | flow.actor.log_probs(batch))

        flow.every(3, lambda: kept.append(flow.reward.score(batch)))
        flow.every(10, look)

    with pytest.raises(FlowError, match="made inside every-3, which does not run every time"):
        trace(Stepped(step))


def test_every_call_knows_its_rows() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        flow.actor.log_probs(flow.actor.generate(prompts, samples=64))
        enough = Custom(
            f"{__name__}:function", reads=["reward_scores"], writes=["enough"], scope=Scope.BATCH
        )

        def round(fresh: Any) -> Any:
            batch = flow.actor.generate(fresh)
            return batch | flow.reward.score(batch)

        batch = flow.repeat(round, until=enough, max_rounds=3, expected_rounds=1.5)
        flow.actor.log_probs(batch)

    graph = trace(Stepped(step), samples_per_prompt=4)
    counts = {
        call.id: (graph.rows[call.id].expected, graph.rows[call.id].maximum) for call in graph.calls
    }
    assert counts["actor.generate"] == counts["actor.log_probs"] == (64, 64)
    assert counts["repeat/reward.score"] == (4, 4), "of one round"
    assert counts["actor.log_probs#2"] == (6, 12), "of all rounds"
    assert graph.max_rows("actor") == 64


def remax(flow: Flow, prompts: BatchValue) -> None:
    batch = flow.actor.generate(prompts, samples=4)
    batch |= flow.reward.score(batch)
    greedy = flow.actor.generate(prompts, samples=1, greedy=True)
    greedy |= flow.reward.score(greedy)
    baseline = greedy.select("reward_scores").rename(reward_scores="baseline")
    batch |= baseline.broadcast(batch)
    above = Custom(
        f"{__name__}:function", reads=["reward_scores", "baseline"], writes=["advantages"]
    )
    batch |= flow.compute(batch, above)
    flow.actor.train(batch, ClippedLoss("reward_valid"))


def test_one_row_of_a_prompt_is_laid_beside_all_its_samples() -> None:
    graph = trace(Stepped(remax))
    sources = {e.source: e.columns for e in graph.data_edges if e.target == "compute"}
    assert sources == {"reward.score": ("reward_scores",), "reward.score#2": ("reward_scores",)}
    assert {call.id: graph.rows[call.id].maximum for call in graph.calls} == {
        "actor.generate": 4,
        "reward.score": 4,
        "actor.generate#2": 1,
        "reward.score#2": 1,
        "compute": 4,
        "actor.train": 4,
    }


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda b, flow, prompts: b.select("scores"), "select of a column.*got scores, allowed"),
        (lambda b, flow, prompts: b.rename(scores="x"), "rename of a column.*got scores, allowed"),
        (lambda b, flow, prompts: b.rename(finished="a-b"), "a name that it cannot: got 'a-b'"),
        (lambda b, flow, prompts: b.rename(finished="record"), "and none that the batch has"),
        (lambda b, flow, prompts: b.rename(finished="x", record="x"), "got 'x'"),
        (lambda b, flow, prompts: b.broadcast(prompts), "got the prompts x 2 for the prompts,"),
        (
            lambda b, flow, prompts: b.broadcast(flow.actor.generate(prompts, samples=4)),
            "got the prompts x 2 for the prompts x 4,.*samples=1",
        ),
        (lambda b, flow, prompts: b.broadcast(None), "takes the rows of a batch: got None"),
    ],
)
def test_what_rows_cannot_do_is_refused(use: Any, message: str) -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        use(flow.actor.generate(prompts, samples=2), flow, prompts)

    with pytest.raises(FlowError, match=message):
        trace(Stepped(step))


def test_names_may_change_places_and_what_was_sampled_greedily_is_known_by_any() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts, samples=1, greedy=True)
        batch |= flow.reward.score(batch)
        swapped = batch.rename(reward_valid="finished", finished="reward_valid")
        batch |= flow.compute(swapped, GroupAdvantages("reward_scores", "reward_valid"))
        renamed = batch.rename(rollout_log_probs="old") | flow.actor.generate(
            prompts, samples=1
        ).select("rollout_log_probs")
        flow.actor.train(renamed, ClippedLoss("reward_valid", old_log_probs="old"))

    with pytest.raises(FlowError, match="has sampled greedily"):
        trace(Stepped(step))


def test_a_symbolic_batch_can_be_printed_and_hashed() -> None:
    batch = SymbolicBatch({"scores": Origin("x", "scores")}, Rows("rows"))
    assert repr(batch) == "<batch of scores>"
    assert len({batch}) == 1


def sampled(flow: Flow, prompts: Any, **options: Any) -> Any:
    return flow.actor.generate(prompts, **options).select("response_tokens", "sample_index")


def test_rows_of_two_calls_are_put_one_after_the_other() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        first = flow.actor.generate(prompts, samples=2)
        second = flow.actor.generate(prompts, samples=2, greedy=True)
        flow.actor.log_probs(first.concat(second))

    graph = trace(Stepped(step))
    assert graph.rows["actor.log_probs"].maximum == 4
    edges = [edge.source for edge in graph.data_edges if edge.target == "actor.log_probs"]
    assert edges == ["actor.generate", "actor.generate#2"]


def test_what_was_sampled_greedily_is_known_among_other_rows() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        batch = flow.actor.generate(prompts)
        batch = batch.concat(flow.actor.generate(prompts, greedy=True))
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"))

    with pytest.raises(FlowError, match="trains on what actor.generate#2 has sampled greedily"):
        trace(Stepped(step), samples_per_prompt=4)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda flow, prompts: prompts.concat(3), "concat takes another batch: got 3"),
        (
            lambda flow, prompts: prompts.concat(prompts.select("record")),
            "got prompt_id, prompt_tokens in one of them only",
        ),
        (
            lambda flow, prompts: sampled(flow, prompts).concat(sampled(flow, prompts, samples=2)),
            "got 4 of the prompts x 4 and 2 of the prompts x 2, allowed equally many",
        ),
        (
            lambda flow, prompts: (
                sampled(flow, prompts)
                .rename(sample_index="a", response_tokens="b")
                .concat(sampled(flow, prompts).rename(sample_index="b", response_tokens="a"))
            ),
            "columns of different kinds are put one after the other: got [ab], from actor.generate",
        ),
        (
            lambda flow, prompts: (
                flow.actor.generate(prompts)
                | flow.actor.generate(prompts).concat(flow.actor.generate(prompts))
            ),
            "different rows are joined: got the prompts x 4 and the prompts x 4 of actor.generate",
        ),
    ],
)
def test_rows_that_cannot_be_put_one_after_the_other_are_refused(use: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        trace(Stepped(use), samples_per_prompt=4)


UNTIL = Custom(f"{function.__module__}:function", [], ["enough"], scope=Scope.BATCH)


def test_every_round_has_prompts_of_its_own() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        batch = flow.repeat(flow.actor.generate, until=UNTIL, max_rounds=5, expected_rounds=2)
        flow.actor.train(batch, CrossEntropy())

    graph = trace(Stepped(step))
    assert graph.repeats and graph.inputs.prompt_batches == 5
    assert graph.inputs.prompts == ("prompt_id", "prompt_tokens", "record")
    assert not trace(Stepped(lambda flow, prompts: sampled(flow, prompts))).repeats


def train_in(flow: Flow, fresh: Any) -> Any:
    batch = flow.actor.generate(fresh)
    flow.actor.train(batch, CrossEntropy())
    return batch


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            lambda flow, prompts, fresh: flow.actor.generate(fresh) | flow.actor.generate(prompts),
            "got the prompts of repeat and the prompts, allowed",
        ),
        (
            lambda flow, prompts, fresh: flow.actor.generate(prompts),
            "a round of repeat gives rows that do not come from its prompts: got the prompts,",
        ),
        (lambda flow, prompts, fresh: None, "the function of repeat returns nothing.*return batch"),
        (
            lambda flow, prompts, fresh: train_in(flow, fresh),
            "repeat/actor.train changes weights in rounds",
        ),
    ],
)
def test_a_round_makes_rows_of_its_own_prompts(body: Any, message: str) -> None:
    def step(flow: Flow, prompts: Any) -> None:
        flow.repeat(
            lambda fresh: body(flow, prompts, fresh),
            until=UNTIL,
            max_rounds=2,
            expected_rounds=1,
        )

    with pytest.raises(FlowError, match=message):
        trace(Stepped(step))


@pytest.mark.parametrize("body", [3, lambda: None, lambda one, other: None])
def test_what_cannot_make_a_round_is_refused(body: Any) -> None:
    def step(flow: Flow, prompts: Any) -> None:
        flow.repeat(body, until=UNTIL, max_rounds=2, expected_rounds=1)

    with pytest.raises(FlowError, match=r"for every round: got .*def sample\(fresh\)"):
        trace(Stepped(step))


def test_rows_put_together_in_another_order_are_others() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        first, other = (flow.actor.generate(prompts) for _ in range(2))
        batch, turned = first.concat(other), other.concat(first)
        turned |= flow.reward.score(turned)
        _ = batch | turned.select("reward_scores").rename(reward_scores="others")

    with pytest.raises(
        FlowError,
        match="different rows are joined: got .* of actor.generate and .* of actor.generate#2 and",
    ):
        trace(Stepped(step))


def test_rounds_are_not_repeated_in_rounds() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        def outer(fresh: Any) -> Any:
            return flow.repeat(flow.actor.generate, until=UNTIL, max_rounds=2, expected_rounds=1)

        flow.repeat(outer, until=UNTIL, max_rounds=2, expected_rounds=1)

    with pytest.raises(FlowError, match="repeat inside of another one: got repeat/repeat.*after"):
        trace(Stepped(step))


def test_one_repeat_may_follow_another() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        for _ in range(2):
            flow.repeat(flow.actor.generate, until=UNTIL, max_rounds=3, expected_rounds=1)

    graph = trace(Stepped(step))
    assert [region.id for region in graph.regions] == ["repeat", "repeat#2"]
    assert graph.inputs.prompt_batches == 5, "the step's own, and twice two fresh ones"


def pretrained(flow: Flow, prompts: Any) -> None:
    batch = flow.actor.generate(prompts)
    flow.actor.train(batch, CrossEntropy(), (flow.pretraining(), CrossEntropy(weight=0.1)))


def test_rows_of_pretraining_are_a_source_of_their_own() -> None:
    graph = trace(Stepped(pretrained), pretraining=RowCount(0.5, 1))
    assert graph.inputs.pretraining == ("prompt_tokens", "response_tokens")
    (edge,) = [edge for edge in graph.data_edges if edge.source == "pretraining"]
    assert edge.target == "actor.train"
    assert "pretraining" in draw_text(graph) and "pretraining([pretraining])" in draw_mermaid(graph)
    assert [call.id for call in graph.topological_order()] == ["actor.generate", "actor.train"]


def test_rows_of_pretraining_that_are_missing_or_not_read_are_refused(job: MakeJob) -> None:
    with pytest.raises(FlowError, match=r"without data\.pretraining.*add data\.pretraining"):
        trace(Stepped(pretrained))
    data = {"train": {"path": "a.jsonl"}, "pretraining": {"path": "b.jsonl"}}
    with pytest.raises(InvalidAlgorithm, match=r"that nothing reads: got GRPO.*flow\.pretraining"):
        trace_job(job(data=data))


def test_rows_of_pretraining_are_not_mixed_with_the_steps() -> None:
    with pytest.raises(FlowError, match="got the rows of data.pretraining and the prompts"):
        trace(
            Stepped(lambda flow, prompts: flow.pretraining() | prompts),
            pretraining=RowCount(1.0, 1),
        )
    with pytest.raises(FlowError, match="reads the column record, which nothing has written"):
        trace(
            Stepped(lambda flow, prompts: flow.actor.generate(flow.pretraining())),
            pretraining=RowCount(1.0, 1),
        )


@pytest.mark.parametrize("of", ["score", "log_probs", "compute"])
def test_what_is_about_other_responses_is_not_laid_beside_these(of: str) -> None:
    def step(flow: Flow, prompts: Any) -> None:
        batch, other = (flow.actor.generate(prompts) for _ in range(2))
        batch |= flow.reward.score(batch)
        other |= flow.reward.score(other)
        valid = ("reward_scores", "reward_valid")
        made = {
            "score": lambda: other.select("reward_scores"),
            "log_probs": lambda: flow.actor.log_probs(other),
            "compute": lambda: flow.compute(other, GroupAdvantages(*valid)),
        }[of]()
        _ = batch | made.rename(**{name: f"other_{name}" for name in made.column_names})
        _ = batch | made

    with pytest.raises(FlowError, match="of other responses: got.*actor.generate#2"):
        trace(Stepped(step), samples_per_prompt=4)


def test_what_is_about_all_rows_that_are_put_together_may_be_joined() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        first, other = (flow.actor.generate(prompts) for _ in range(2))
        batch = first.concat(other)
        batch |= flow.reward.score(batch)
        apart = (each | flow.actor.log_probs(each) for each in (first, other))
        batch |= next(apart).concat(next(apart)).select("actor_log_probs")
        flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))

    assert len(trace(Stepped(step)).calls) == 6


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda batch: batch.selct("record"), "no selct: got batch.selct.*did you mean select?"),
        (lambda batch: batch.union(batch), r"allowed `\|` for a join, broadcast, column_names"),
        (lambda batch: batch["record"], r"allowed batch\.select\('record'\)"),
        (lambda batch: batch.select(["record"]), r"takes names one by one: got \['record'\]"),
        (lambda batch: batch.rename(text="record"), r"as rename\(old='new'\)"),
    ],
)
def test_other_habits_are_answered_with_what_a_batch_has(use: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        trace(Stepped(lambda flow, prompts: use(prompts)))
