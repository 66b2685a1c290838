"""What follows from the form of the data, and from rewards and models that a job lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphInputs, GraphName
from rlhf_flow.errors import FlowError, InvalidAlgorithm
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_planner.memory.roles import role_model
from rlhf_planner.placement.strategy import RoleStrategy
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.model_shapes import resolve_shape

from .conftest import MakeJob

CPUS = (local_inventory(2, 16 * GIB),)
WITHOUT_ACTOR: dict[str, Any] = {"models": {"student": {"source": {"builtin": "TinyLlama"}}}}
SCORED = [{"function": {"entrypoint": "verifiers:exact"}}]


def custom(name: str) -> dict[str, Any]:
    entrypoint = f"tests.runs.user_code.algorithms:{name}"
    return {"type": "Custom", "custom": {"entrypoint": entrypoint}}


def supervised(job: MakeJob, train: dict[str, Any], **sections: Any) -> Any:
    data = {"train": train, **sections.pop("data", {})}
    given = {"rewards": [], **WITHOUT_ACTOR, **sections}
    return job(algorithm=custom("Imitate"), data=data, **given)


def compared(job: MakeJob, **sections: Any) -> Any:
    given = {
        "models": {"reward_model": {"source": {"builtin": "TinyLlama"}}},
        "data": {"train": {"path": "a.jsonl", "preferences": {}}},
        "rewards": [],
    }
    return job(algorithm=custom("Compare"), **given | sections)


def test_a_step_reads_what_the_form_of_the_data_has(job: MakeJob) -> None:
    (graph,) = trace_job(supervised(job, {"path": "a.jsonl", "answerField": "solution"})).values()
    assert graph.inputs.prompts == ("prompt_tokens", "response_tokens")
    assert graph.max_rows("student") == 1
    (graph,) = trace_job(compared(job)).values()
    assert graph.inputs.prompts == ("preference", "prompt_tokens", "response_tokens")
    assert graph.max_rows("reward_model") == 2, "two rows of every prompt"


def test_generation_reads_prompts_only_where_there_are_answers(job: MakeJob) -> None:
    graphs = trace_job(job(data={"train": {"builtin": "SortDigits"}}))
    for graph in graphs.values():
        assert graph.inputs == GraphInputs(prompts=("prompt_id", "prompt_tokens", "record"))


def test_answers_and_pairs_that_the_data_lack_are_named(job: MakeJob) -> None:
    with pytest.raises(FlowError, match=r"response_tokens.*that data\.train\.answerField names"):
        trace_job(supervised(job, {"path": "a.jsonl"}))
    with pytest.raises(FlowError, match=r"preference comes from.* the pairs of data\.train\.pref"):
        trace_job(compared(job, data={"train": {"path": "a.jsonl", "answerField": "answer"}}))


def test_prompts_of_pairs_are_not_answered(job: MakeJob) -> None:
    data = {"train": {"path": "a.jsonl", "preferences": {}}}
    with pytest.raises(InvalidAlgorithm, match="actor.generate would answer every prompt twice"):
        trace_job(job(algorithm=custom("Rloo"), data=data))


CONVERSATIONS: dict[str, Any] = {
    "path": "a.jsonl",
    "answerField": "messages",
    "promptField": "messages",
    "trainOn": "AllAnswers",
}


def test_losses_on_conversations_read_the_mask_of_their_answers(job: MakeJob) -> None:
    (graph,) = trace_job(supervised(job, CONVERSATIONS)).values()
    assert graph.inputs.prompts == ("prompt_tokens", "response_mask", "response_tokens")
    pairs = {"train": {"path": "a.jsonl", "preferences": {}, "trainOn": "AllAnswers"}}
    dpo = trace_job(job(algorithm={"type": "DPO"}, data=pairs, rewards=[]))[GraphName.STEP]
    assert "response_mask" in dpo.call("actor.train").reads
    assert "response_mask" not in dpo.call("reference.log_probs").reads
    (graph,) = trace_job(compared(job, data=pairs)).values()
    assert "response_mask" not in graph.inputs.prompts, "a score has no tokens that count"


def test_one_source_with_all_its_answers_is_enough_for_a_mask(job: MakeJob) -> None:
    sources = [{"path": "a.jsonl"}, {"path": "b.jsonl", "trainOn": "AllAnswers"}]
    train = {"sources": sources, "answerField": "messages", "promptField": "messages"}
    sft = job(
        algorithm={"type": "SFT"},
        data={"train": train},
        rewards=[],
        schedule={"steps": 10, "promptsPerStep": 16, "warmStart": {}},
    )
    for graph in trace_job(sft).values():
        assert graph.inputs.prompts == ("prompt_tokens", "response_mask", "response_tokens")


def test_conversations_are_trained_on_and_not_answered(job: MakeJob) -> None:
    data = {"train": CONVERSATIONS}
    with pytest.raises(InvalidAlgorithm, match="answer only the beginnings of conversations"):
        trace_job(job(algorithm=custom("Rloo"), data=data))
    without = {"train": {"path": "a.jsonl", "trainOn": "AllAnswers"}}
    with pytest.raises(FlowError, match=r"response_tokens.*that data\.train\.answerField names"):
        trace_job(supervised(job, without["train"]))


@pytest.mark.parametrize("algorithm", [{"type": "GRPO"}, custom("Rloo")])
def test_a_warm_start_trains_on_conversations_and_the_step_generates_its_own(
    job: MakeJob, algorithm: dict[str, Any]
) -> None:
    schedule = {"steps": 10, "promptsPerStep": 16, "warmStart": {}}
    environment = {"entrypoint": "mine:Calculator"}
    for rollout in ({}, {"environment": environment}):
        graphs = trace_job(
            job(
                algorithm=algorithm,
                data={"train": CONVERSATIONS},
                schedule=schedule,
                rollout={"samplesPerPrompt": 4, **rollout},
            )
        )
        start = graphs[GraphName.WARM_START]
        assert start.inputs.prompts == ("prompt_tokens", "response_mask", "response_tokens")
        step = graphs[GraphName.STEP]
        assert "response_mask" not in step.inputs.prompts, "responses have a mask of their own"
        # Without an environment all their tokens are sampled.
        assert ("response_mask" in step.call("actor.train").reads) == bool(rollout)


def test_a_role_without_a_model_is_refused_with_the_nearest_name(job: MakeJob) -> None:
    models = {"reward_modell": {"source": {"builtin": "TinyLlama"}}}
    message = (
        "got models.reward_modell and none for reward_model, allowed models.reward_model, or "
        r"models.actor.*rename models.reward_modell \(did you mean reward_model\?\)"
    )
    with pytest.raises(InvalidAlgorithm, match=message):
        trace_job(compared(job, models=models))
    actor = {"actor": {"source": {"builtin": "TinyLlama"}}}
    assert trace_job(compared(job, models=actor)), "it starts from the actor's weights"


def test_without_generation_there_is_no_engine(job: MakeJob) -> None:
    _, plan = make_plan(compared(job), CPUS)
    assert plan.generations == () and plan.policy == "reward_model"
    read = GraphInputs(prompts=("preference", "prompt_tokens", "response_tokens"))
    assert plan.inputs == {GraphName.STEP: read}
    (memory,) = plan.memory
    assert list(map(str, memory.phases)) == ["reward_model.train"]


@pytest.mark.parametrize(("tokens", "peak"), [(32, 64), (100, 100), (4096, 2 * 64)])
def test_pairs_take_memory_together_as_far_as_micro_batches_have_room(
    job: MakeJob, tokens: int, peak: int
) -> None:
    """Responses of 32 + 32 tokens; on sixteen ranks each has a pair of the step's sixteen."""
    model = {"source": {"builtin": "TinyLlama"}, "training": {"microBatchTokens": tokens}}
    made = compared(job, models={"reward_model": model})
    shapes = {"reward_model": resolve_shape(made, "reward_model", Path())}
    problem = problem_of(made, trace_job(made), CPUS, shapes)
    strategy = RoleStrategy(Mesh(pool="local", data=16), micro_batch_tokens=4096)
    found = role_model(problem, "reward_model", strategy)
    assert found.peak_tokens == peak


@pytest.mark.parametrize(
    ("rewards", "evaluation", "is_evaluated"),
    [
        ([], None, False),
        (SCORED, None, True),
        ([], {"path": "held-out.jsonl"}, True),
    ],
)
def test_a_builtin_task_is_evaluated_where_something_scores(
    job: MakeJob, rewards: Any, evaluation: Any, is_evaluated: bool
) -> None:
    data = {} if evaluation is None else {"evaluation": evaluation}
    graphs = trace_job(supervised(job, {"builtin": "SortDigits"}, rewards=rewards, data=data))
    assert (GraphName.EVALUATION in graphs) == is_evaluated
    if is_evaluated:
        calls = [call.id for call in graphs[GraphName.EVALUATION].calls]
        assert calls == ["student.generate", *(["reward.score"] if rewards else [])]


def test_rewards_that_nothing_asks_for_are_refused(job: MakeJob) -> None:
    train = {"path": "a.jsonl", "answerField": "answer"}
    with pytest.raises(InvalidAlgorithm, match="rewards that score nothing: got reward"):
        trace_job(supervised(job, train, rewards=SCORED))
    with pytest.raises(InvalidAlgorithm, match="^rewards needs a language model"):
        trace_job(compared(job, rewards=SCORED))
    of_student = [{**SCORED[0], "role": "student"}]
    with pytest.raises(ManifestError, match=r"rewards\[0\]\.role: .*has a model: got student, all"):
        trace_job(supervised(job, train, rewards=of_student))
