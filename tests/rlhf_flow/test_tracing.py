"""What tracing refuses, and the graphs of PPO and GRPO by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName, ModelHead
from rlhf_api.spec.resources import Device
from rlhf_flow import (
    BatchValue,
    ClippedLoss,
    CrossEntropy,
    Flow,
    LanguageModel,
    Roles,
    ScalarModel,
)
from rlhf_flow.errors import FlowError, InvalidAlgorithm
from rlhf_flow.jobs.job_graphs import JobRole, check_step, job_roles, policy_role, trace_job
from rlhf_flow.step.calls import ComputeOptions, GenerateOptions, TrainOptions
from rlhf_flow.step.operations import (
    Custom,
    Gae,
    GroupAdvantages,
    LagrangeMultiplier,
    PassAtK,
    Scope,
    TokenRewards,
)
from rlhf_flow.trace.graph import DataEdge, Graph, VersionEdge
from rlhf_flow.trace.picture import draw_mermaid, draw_text
from rlhf_flow.trace.tracing import trace

from .stepped import Step, Stepped


def calls_of(graph: Graph) -> list[str]:
    return [call.id for call in graph.calls]


def test_grpo_is_four_calls(job: Any) -> None:
    graph = trace_job(job())[GraphName.STEP]
    assert calls_of(graph) == ["actor.generate", "reward.score", "compute", "actor.train"]
    assert set(graph.data_edges) == {
        DataEdge("prompts", "actor.generate", ("prompt_id", "prompt_tokens", "record")),
        DataEdge(
            "actor.generate",
            "reward.score",
            ("finished", "prompt_id", "record", "response_text"),
        ),
        DataEdge("actor.generate", "compute", ("prompt_id", "response_tokens")),
        DataEdge("reward.score", "compute", ("reward_scores", "reward_valid")),
        DataEdge("compute", "actor.train", ("advantages",)),
        DataEdge(
            "actor.generate",
            "actor.train",
            ("prompt_tokens", "response_tokens", "rollout_log_probs"),
        ),
        DataEdge("reward.score", "actor.train", ("reward_valid",)),
    }
    assert set(graph.version_edges) == {
        VersionEdge("actor.generate", "actor.train", "actor", 0),
        VersionEdge("actor.train", "actor.generate", "actor", 1),
    }


@pytest.mark.parametrize(
    ("settings", "mini_batch", "expected"),
    [
        ({}, None, []),
        ({"klCoefficient": 0.1}, None, ["reference.log_probs"]),
        ({}, 8, ["actor.log_probs"]),
        ({"epochsPerBatch": 2}, None, ["actor.log_probs"]),
        (
            {"epochsPerBatch": 2, "klCoefficient": 0.1},
            None,
            ["actor.log_probs", "reference.log_probs"],
        ),
    ],
)
def test_grpo_infers_only_what_its_settings_need(
    job: Any, settings: dict[str, Any], mini_batch: int | None, expected: list[str]
) -> None:
    schedule = {"steps": 10, "promptsPerStep": 16, "miniBatchPrompts": mini_batch}
    algorithm = {"type": "GRPO", "grpo": settings}
    graph = trace_job(job(algorithm=algorithm, schedule=schedule))[GraphName.STEP]
    before = ["actor.generate", "reward.score"]
    assert calls_of(graph) == [*before, *expected, "compute", "actor.train"]
    train = graph.call("actor.train")
    assert ("actor_log_probs" in train.reads) == ("actor.log_probs" in expected)
    assert ("reference_log_probs" in train.reads) == ("reference.log_probs" in expected)


def ppo_graph(job: Any, settings: dict[str, Any], **schedule: Any) -> Graph:
    sections = {"steps": 10, "promptsPerStep": 16} | schedule
    made = job(algorithm={"type": "PPO", "ppo": settings}, schedule=sections)
    graph: Graph = trace_job(made)[GraphName.STEP]
    return graph


def test_ppo_without_a_penalty_has_no_reference(job: Any) -> None:
    graph = ppo_graph(job, {})
    assert calls_of(graph) == [
        "actor.generate",
        "reward.score",
        "critic.values",
        "compute",
        "critic.train",
        "actor.train",
    ]
    assert "reference" not in graph.roles
    assert set(graph.version_edges) == {
        VersionEdge("actor.generate", "actor.train", "actor", 0),
        VersionEdge("actor.train", "actor.generate", "actor", 1),
        VersionEdge("critic.values", "critic.train", "critic", 0),
        VersionEdge("critic.train", "critic.values", "critic", 1),
    }


@pytest.mark.parametrize(
    ("placement", "mini_batch", "in_rewards", "in_loss"),
    [
        ("Reward", None, {"reference_log_probs", "rollout_log_probs"}, set()),
        ("Reward", 8, {"reference_log_probs", "actor_log_probs"}, {"actor_log_probs"}),
        ("Loss", None, set(), {"reference_log_probs"}),
        ("Loss", 8, set(), {"reference_log_probs", "actor_log_probs"}),
    ],
)
def test_the_penalty_is_read_where_it_is_placed(
    job: Any, placement: str, mini_batch: int | None, in_rewards: set[str], in_loss: set[str]
) -> None:
    settings = {"klCoefficient": 0.1, "klPlacement": placement}
    graph = ppo_graph(job, settings, miniBatchPrompts=mini_batch)
    fixed = {"reward_scores", "response_tokens", "critic_values", "reward_valid"}
    assert set(graph.call("compute").reads) == fixed | in_rewards
    base = {"prompt_tokens", "response_tokens", "advantages", "rollout_log_probs", "reward_valid"}
    assert set(graph.call("actor.train").reads) == base | in_loss


def test_critic_warm_up_and_whitening_are_options_of_the_same_graph(job: Any) -> None:
    graph = ppo_graph(job, {"criticWarmupSteps": 3, "whitenAdvantages": False})
    training, computation = graph.call("actor.train").options, graph.call("compute").options
    assert isinstance(training, TrainOptions) and training.from_step == 3
    assert isinstance(computation, ComputeOptions)
    assert [type(operation) for operation in computation.operations] == [TokenRewards, Gae]


def test_a_job_has_graphs_for_warm_start_and_evaluation(job: Any) -> None:
    made = job(
        data={"train": {"builtin": "SortDigits"}},
        schedule={"steps": 10, "promptsPerStep": 16, "warmStart": {}},
    )
    graphs = trace_job(made)
    assert list(graphs) == [GraphName.WARM_START, GraphName.EVALUATION, GraphName.STEP]
    assert calls_of(graphs[GraphName.WARM_START]) == ["actor.train"]
    assert graphs[GraphName.EVALUATION].call("actor.generate").options == GenerateOptions(
        samples=1, greedy=True
    )


def test_evaluation_follows_its_data(job: Any) -> None:
    evaluation = {"path": "test.jsonl", "samplesPerPrompt": 4, "temperature": 0.5}
    graphs = trace_job(job(data={"train": {"path": "a.jsonl"}, "evaluation": evaluation}))
    options = graphs[GraphName.EVALUATION].call("actor.generate").options
    assert options == GenerateOptions(samples=4, temperature=0.5)
    assert GraphName.EVALUATION not in trace_job(job())


def test_pass_at_k_is_computed_where_it_is_asked_for(job: Any) -> None:
    evaluation = {"path": "test.jsonl", "samplesPerPrompt": 4, "passAtK": [1, 4]}
    graphs = trace_job(job(data={"train": {"path": "a.jsonl"}, "evaluation": evaluation}))
    options = graphs[GraphName.EVALUATION].call("compute").options
    assert isinstance(options, ComputeOptions)
    assert options.operations == (PassAtK("reward_scores", "reward_valid", (1, 4)),)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda batch: bool(batch), "truth value"),
        (lambda batch: 1 if batch else 2, "truth value"),
        (len, r"len\(batch\)"),
        (list, "iteration"),
        (float, "float"),
        (int, "int"),
        (lambda batch: [1, 2][batch], "index"),
        (lambda batch: batch["reward_scores"], r"batch\['reward_scores'\]"),
        (lambda batch: batch.scores, "batch.scores"),
        (lambda batch: "reward_scores" in batch, "in batch"),
        (lambda batch: batch == 1, "comparison"),
        (lambda batch: batch != batch, "comparison"),
        (lambda batch: batch < 1, "comparison"),
        (lambda batch: batch >= 1, "comparison"),
        (lambda batch: batch | None, "joined with something else"),
    ],
)
def test_a_step_cannot_look_at_values(use: Callable[[Any], object], message: str) -> None:
    with pytest.raises(FlowError, match=message):
        trace(Stepped(lambda flow, prompts: use(prompts)))


def test_the_refusal_says_what_to_use_instead() -> None:
    with pytest.raises(FlowError, match=r"flow\.repeat.*flow\.every.*settings.*flow\.compute"):
        trace(Stepped(lambda flow, prompts: bool(prompts)))


@pytest.mark.parametrize(
    ("options", "how"),
    [({"greedy": True}, "greedily"), ({"temperature": 0.5}, "at temperature 0.5")],
)
def test_a_loss_on_log_probs_of_another_distribution_is_refused(
    options: dict[str, Any], how: str
) -> None:
    def step(loss: Any) -> Step:
        def of_loss(flow: Flow, prompts: Any) -> None:
            batch = flow.actor.generate(prompts, **options)
            batch |= flow.reward.score(batch)
            batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
            flow.actor.train(batch, loss)

        return of_loss

    with pytest.raises(FlowError, match=f"actor.train trains on what actor.generate has .*{how}"):
        trace(Stepped(step(ClippedLoss("reward_valid"))))
    trace(Stepped(step(CrossEntropy())))  # it compares nothing


def test_roles_and_rewards_must_fit_each_other(job: Any) -> None:
    function = {"entrypoint": "mine:score"}
    cost = {"name": "cost", "role": "rewards", "function": function}
    for rewards, place in (([{"function": function}, cost], 1), ([cost], 0)):
        with pytest.raises(ManifestError, match="got rewards, allowed reward; did you mean") as e:
            trace_job(job(rewards=rewards))
        assert [problem.path for problem in e.value.problems] == [f"spec.rewards[{place}].role"]
    costly = {"type": "Custom", "custom": {"entrypoint": "tests.rlhf_flow.stepped:Costly"}}
    with pytest.raises(ManifestError, match="got no reward of cost, allowed.*cost, reward"):
        trace_job(job(rewards=[{"function": function}], algorithm=costly))


def test_a_batch_of_another_step_is_refused() -> None:
    class Keeper(Stepped):
        def step(self, flow: Flow, prompts: BatchValue) -> None:
            flow.actor.generate("prompts")

    with pytest.raises(FlowError, match="takes a batch: got 'prompts'"):
        trace(Keeper(lambda flow, prompts: None))


def test_a_step_that_differs_from_run_to_run_is_refused() -> None:
    generator = random.Random(0)

    def step(flow: Flow, prompts: Any) -> None:
        flow.actor.generate(prompts, temperature=generator.random() + 0.1)

    with pytest.raises(InvalidAlgorithm, match="not deterministic: got actor.generate with"):
        trace(Stepped(step))


def test_a_step_that_counts_its_runs_is_refused() -> None:
    seen: list[int] = []

    def step(flow: Flow, prompts: Any) -> None:
        for _ in range(len(seen) + 1):
            flow.actor.generate(prompts)
        seen.append(1)

    with pytest.raises(InvalidAlgorithm, match="got 1 calls, then 2"):
        trace(Stepped(step))


def test_a_step_that_raises_says_where() -> None:
    with pytest.raises(InvalidAlgorithm, match=r"test_tracing\.py:\d+: .*raised ZeroDivisionError"):
        trace(Stepped(lambda flow, prompts: 1 // 0))


def test_a_step_without_calls_is_refused() -> None:
    with pytest.raises(InvalidAlgorithm, match="calls nothing"):
        trace(Stepped(lambda flow, prompts: None))


def test_roles_must_be_kinds_by_name() -> None:
    class Nameless(Stepped):
        def roles(self) -> Any:
            return ["actor"]

    with pytest.raises(FlowError, match="something other than roles: got \\['actor'\\], allowed"):
        trace(Nameless(lambda flow, prompts: None))


def test_a_training_step_must_train() -> None:
    graph = trace(Stepped(lambda flow, prompts: flow.actor.generate(prompts)))
    with pytest.raises(InvalidAlgorithm, match="trains nothing"):
        check_step(graph)


def test_what_a_role_is_used_for_follows_from_the_calls() -> None:
    class Debate(Stepped):
        def roles(self) -> Roles:
            return {"judge": ScalarModel, "teacher": LanguageModel, "student": LanguageModel}

    def step(flow: Flow, prompts: BatchValue) -> None:
        flow.student.train(flow.teacher.generate(prompts), CrossEntropy())
        flow.student.generate(prompts)
        flow.judge.values(flow.teacher.generate(prompts))

    graph = trace(Debate(step))
    roles = job_roles({GraphName.STEP: graph})
    assert roles == {
        "judge": JobRole(ModelHead.SCALAR, is_trained=False, generates=False),
        "teacher": JobRole(ModelHead.LM, is_trained=False, generates=True),
        "student": JobRole(ModelHead.LM, is_trained=True, generates=True),
    }
    assert policy_role(graph) == "student"


def test_old_log_probs_come_from_the_trainer_where_the_engines_differ(job: Any) -> None:
    """By rounding, that is in bfloat16; in float32 a single update needs none."""
    devices = (Device.CPU, Device.GPU)
    on_cpus, on_gpus = (trace_job(job(), device)[GraphName.STEP] for device in devices)
    assert on_cpus.roles_with(CallKind.INFER) == ()
    assert on_gpus.roles_with(CallKind.INFER) == ("actor",)
    assert "actor_log_probs" in on_gpus.call("actor.train").reads
    actor = {"source": {"builtin": "TinyLlama"}, "training": {"precision": "float32"}}
    exact = trace_job(job(models={"actor": actor}), Device.GPU)[GraphName.STEP]
    assert exact.roles_with(CallKind.INFER) == ()


def test_two_multipliers_need_two_names() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        one = LagrangeMultiplier("reward_scores", "reward_valid")
        flow.compute(batch, one, LagrangeMultiplier("reward_scores", "reward_valid", 1.0))

    def beside_a_function(flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        entrypoint = "tests.rlhf_flow.test_tracing:remembering"
        kept = {"scope": Scope.BATCH, "keeps": {"multiplier": 1.0}}
        flow.compute(batch, Custom(entrypoint, ["reward_scores"], ["y"], **kept))
        flow.compute(batch, LagrangeMultiplier("reward_scores", "reward_valid"))

    with pytest.raises(FlowError, match="'multiplier' of LagrangeMultiplier"):
        trace(Stepped(beside_a_function))
    with pytest.raises(FlowError, match="keeps a number of the same name: got 'multiplier'"):
        trace(Stepped(step))


def remembering(columns: object, *, state: object) -> object:
    """Of an operation."""
    return columns, state


def test_a_function_that_keeps_something_takes_it() -> None:
    def step(flow: Flow, prompts: BatchValue) -> None:
        entrypoint = "tests.rlhf_flow.stepped:function"
        kept = {"scope": Scope.BATCH, "keeps": {"mean": 1.0}}
        flow.compute(prompts, Custom(entrypoint, ["prompt_id"], ["y"], **kept))

    with pytest.raises(InvalidAlgorithm, match="does not take its arguments: .*state"):
        trace(Stepped(step))


def test_pictures_name_every_call_and_edge(job: Any) -> None:
    graph = ppo_graph(job, {"klCoefficient": 0.1})
    text, mermaid = draw_text(graph), draw_mermaid(graph)
    for call in graph.calls:
        assert call.id in text and f'["{call.id}"]' in mermaid
    assert mermaid.count(" -->|") == len(graph.data_edges)
    assert mermaid.count(" -.->|") == len(graph.version_edges)
    assert "TokenRewards, Gae, Whiten: over the whole batch" in text
    assert "~> actor.train gives actor's weights to the next step's actor.generate" in text
