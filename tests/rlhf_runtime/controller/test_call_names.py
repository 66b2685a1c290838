"""Metrics of several generate calls of a step have names of their own, however the step is made."""

from __future__ import annotations

from typing import Any

from rlhf_api.calls import CallKind
from rlhf_flow import (
    Algorithm,
    BatchValue,
    ClippedLoss,
    CrossEntropy,
    Flow,
    LanguageModel,
    RewardSource,
    Roles,
)
from rlhf_flow.step.operations import EnoughGroups, GroupAdvantages, MixedGroups
from rlhf_flow.trace.graph import Graph
from rlhf_flow.trace.tracing import trace
from rlhf_runtime.calls.reports import CallReport, Statistics
from rlhf_runtime.controller.call_names import CallNames, trained_generate_call
from rlhf_runtime.controller.steps import summarize
from rlhf_runtime.telemetry.metric_names import NameParts, describe, parse_metric_name
from rlhf_runtime.telemetry.spread import Spread

ADVANTAGES = GroupAdvantages("reward_scores", "reward_valid")
LOSS = ClippedLoss("reward_valid")


class Step(Algorithm):
    """Around a function."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def roles(self) -> Roles:
        models = dict.fromkeys(("actor", "teacher"), LanguageModel)
        return {**models, "reward": RewardSource, "cost": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        self._step(flow, prompts)


def traced(step: Any) -> Graph:
    return trace(Step(step), samples_per_prompt=2)


def reported(call: Any) -> Statistics:
    """What a call of the kind reports, as far as its names go; all values are 1."""
    mean, site = (1.0, 1.0), call.id.rpartition("/")[2]
    if call.kind is CallKind.GENERATE:
        return Statistics({"response/length_mean": mean}, {"response/length_max": 1.0})
    if call.kind is CallKind.SCORE:
        spread = {f"{call.role}/std": Spread(1, 0.0, 1.0)}
        return Statistics({f"{call.role}/mean": mean}, {}, {"score/invalid": 1.0}, spread)
    if call.kind is CallKind.TRAIN:
        return Statistics({f"{call.role}/loss": mean}, {}, {f"{call.role}/skipped_updates": 1.0})
    return Statistics({"groups/equal": mean} if site.startswith("compute") else {})


def metrics_of(graph: Graph) -> dict[str, float]:
    """Of a pass in which every call was made once."""
    reports = [CallReport(call.id, reported(call), (), 0) for call in graph.calls]
    return dict(summarize(reports, 0.0, 1.0, CallNames(graph)).metrics)


def names_of(graph: Graph) -> set[str]:
    return set(metrics_of(graph))


def of(*names: str, suffix: str = "") -> set[str]:
    return {f"{name}{suffix}" for name in names}


RESPONSES = ("response/length_mean", "response/length_max")
SCORES = ("reward/mean", "reward/std", "score/invalid")
TRAINED = ("actor/loss", "actor/skipped_updates")


def remax(greedy_first: bool) -> Any:
    def step(flow: Flow, prompts: BatchValue) -> None:
        def sampled() -> BatchValue:
            batch: BatchValue = flow.actor.generate(prompts)
            return batch | flow.reward.score(batch)

        def greedy() -> BatchValue:
            best: BatchValue = flow.actor.generate(prompts, samples=1, greedy=True)
            names = {"reward_scores": "baseline", "reward_valid": "has_baseline"}
            return flow.reward.score(best).select(*names).rename(**names)

        first, second = (greedy(), sampled()) if greedy_first else (sampled(), greedy())
        batch, baseline = (second, first) if greedy_first else (first, second)
        batch |= baseline.broadcast(batch)
        batch |= flow.compute(batch, ADVANTAGES)
        flow.actor.train(batch, LOSS)

    return step


def test_what_is_trained_on_has_the_plain_names_whichever_is_generated_first() -> None:
    """Of ReMax the greedy responses have their call's name, in totals as well."""
    plain = of(*RESPONSES, *SCORES, *TRAINED, "groups/equal")
    assert names_of(traced(remax(False))) == plain | of(*RESPONSES, *SCORES, suffix=".actor.2")
    assert names_of(traced(remax(True))) == plain | of(*RESPONSES, *SCORES, suffix=".actor")


def test_responses_of_another_role_are_not_mixed_with_the_policys() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        other = flow.teacher.generate(prompts)
        flow.reward.score(other)
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        flow.compute(other | flow.reward.score(other), ADVANTAGES)
        batch |= flow.compute(batch, ADVANTAGES)
        flow.actor.train(batch, LOSS)

    assert names_of(traced(step)) == {
        *of(*RESPONSES, *SCORES, *TRAINED, "groups/equal"),
        *of(*RESPONSES, *SCORES, "groups/equal", suffix=".teacher"),
        *of("reward/mean", "reward/std", suffix=".teacher.2"),
    }, "the second score of the same responses is the second of its kind"


def test_what_is_only_shown_keeps_the_plain_name_where_nothing_trained_on_has_it() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        taught = flow.teacher.generate(prompts)
        flow.actor.train(taught, CrossEntropy())
        flow.reward.score(flow.actor.generate(prompts, samples=1, greedy=True))

    graph = traced(step)
    assert trained_generate_call(graph) == "teacher.generate"
    assert names_of(graph) == {
        *of(*RESPONSES, *SCORES, *TRAINED),
        *of(*RESPONSES, suffix=".actor"),
    }


def test_rounds_are_a_part_of_the_step_and_regions_have_theirs_in_front() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        def sample(fresh: BatchValue) -> BatchValue:
            batch: BatchValue = flow.actor.generate(fresh)
            batch |= flow.reward.score(batch)
            return batch | flow.compute(batch, MixedGroups("reward_scores", "reward_valid"))

        until = EnoughGroups("mixed", 4)
        flow.reward.score(flow.actor.generate(prompts, samples=1, greedy=True))
        batch = flow.repeat(sample, until=until, max_rounds=3, expected_rounds=2)
        batch |= flow.compute(batch, ADVANTAGES)
        flow.actor.train(batch, LOSS)

        def show() -> None:
            shown = flow.actor.generate(prompts, samples=1, greedy=True)
            flow.reward.score(shown)
            other = flow.teacher.generate(prompts, samples=1)
            flow.reward.score(other)

        flow.every(10, show)

    graph = traced(step)
    assert trained_generate_call(graph) == "repeat/actor.generate"
    names = {name for name in names_of(graph) if not name.endswith("groups/equal")}
    assert names == {
        *of(*RESPONSES, *SCORES, *TRAINED),
        *of(*RESPONSES, *SCORES, suffix=".actor"),
        *{f"every-10/{name}" for name in (*RESPONSES, *SCORES)},
        *{f"every-10/{name}.teacher" for name in (*RESPONSES, *SCORES)},
    }


def test_rows_of_two_generate_calls_together_count_as_the_first() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        both = flow.actor.generate(prompts).concat(flow.teacher.generate(prompts))
        both |= flow.reward.score(both)
        both |= flow.compute(both, ADVANTAGES)
        flow.actor.train(both, LOSS)

    assert names_of(traced(step)) == {
        *of(*RESPONSES, *SCORES, *TRAINED, "groups/equal"),
        *of(*RESPONSES, suffix=".teacher"),
    }


def test_a_second_training_has_its_number_and_its_total_is_the_steps() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        flow.actor.train(batch, CrossEntropy())
        flow.actor.train(flow.teacher.generate(prompts), CrossEntropy())

    metrics = metrics_of(traced(step))
    assert metrics["actor/loss"] == metrics["actor/loss.2"] == 1.0
    assert metrics["actor/skipped_updates"] == 2.0 and "actor/skipped_updates.2" not in metrics


def test_tokens_are_the_whole_steps_and_weights_are_named_as_what_they_are_for() -> None:
    graph = traced(remax(False))
    names = CallNames(graph)
    moved = Statistics({"throughput/transition_bytes": (1.0, 1.0)}, {}, {"batch/tokens": 3.0})
    assert set(names.for_call("actor.reshard#2").rename(moved).means) == {
        "throughput/transition_bytes.actor.2"
    }
    assert names.for_call("actor.generate#2").rename(moved).sums == {"batch/tokens": 3.0}
    assert names.for_call("prompts").rename(moved) == moved


def test_names_are_read_as_they_were_made() -> None:
    assert parse_metric_name("every-10/reward/mean.actor.2") == NameParts(
        "every-10", "reward/mean", "actor.2"
    )
    assert parse_metric_name("reward/mean") == NameParts("", "reward/mean", "")
    assert parse_metric_name("repeat.2/until/loss") == NameParts("repeat.2", "until/loss", "")
    assert describe("reward/mean.actor.2").title == "Reward [actor.2]"
    assert describe("every-10/actor/kl").title == "KL to the reference (actor) [every-10]"
    assert describe("score/invalid.teacher").unit == describe("score/invalid").unit == "responses"


def test_responses_that_the_policy_is_trained_on_go_before_those_of_other_roles() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        flow.teacher.train(flow.teacher.generate(prompts), CrossEntropy())
        flow.actor.train(flow.actor.generate(prompts), CrossEntropy())

    graph = traced(step)
    assert trained_generate_call(graph) == "actor.generate"
    assert {*RESPONSES, "response/length_mean.teacher", "teacher/loss"} <= names_of(graph)
