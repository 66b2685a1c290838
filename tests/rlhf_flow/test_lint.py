"""What is odd about a step and runs all the same."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.jobs.lint import lint_job
from rlhf_runtime.dataplane.partition import BatchShape

from ..depth import examples
from .conftest import MakeJob

HEAD = """
    from rlhf_flow import *
    from rlhf_flow.step.operations import *

    class Mine(Algorithm):
        def roles(self):
            models = {"actor": LanguageModel, "critic": ScalarModel}
            return {**models, "reward": RewardSource, **EXTRA}

        def step(self, flow, prompts):
            batch = flow.actor.generate(prompts)
            batch |= flow.reward.score(batch) | flow.critic.values(batch)
            gae = Gae(1.0, 1.0, values="critic_values")
"""
TAIL = """
            batch |= flow.compute(batch, TokenRewards("reward_scores"), gae)
            flow.critic.train(batch, ValueLoss("reward_valid", "critic_values"))
            flow.actor.train(batch, LOSS)
"""
PLAIN = 'ClippedLoss("reward_valid")'

Lint = Callable[..., tuple[str, ...]]


@pytest.fixture
def lint(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Lint:
    """What is odd about a step with these lines in it."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers = count()

    def of_lines(
        *lines: str,
        loss: str = PLAIN,
        extra: str = "{}",
        device: Device = Device.CPU,
        **sections: Any,
    ) -> tuple[str, ...]:
        name = f"linted_{abs(hash(request.node.name))}_{next(numbers)}"
        inner = "".join(f"            {line}\n" for line in lines)
        text = textwrap.dedent(HEAD + inner + TAIL).replace("LOSS", loss).replace("EXTRA", extra)
        (tmp_path / f"{name}.py").write_text(text)
        custom = {"type": "Custom", "custom": {"entrypoint": f"{name}:Mine"}}
        made = job(algorithm=custom, **sections)
        return lint_job(made, trace_job(made, device), device)

    return of_lines


def test_a_step_that_uses_all_that_it_makes_is_not_odd(lint: Lint) -> None:
    assert lint() == ()


def test_a_role_that_no_call_uses_is_told(lint: Lint) -> None:
    (told,) = lint(extra='{"reference": LanguageModel}')
    assert "no call uses: got reference in roles()" in told


def test_a_role_whose_only_reward_is_a_model_is_used_where_it_is_scored(lint: Lint) -> None:
    """The score is a call of the model: none is left for the role itself."""
    model = [{"name": "learned", "model": {"path": "judge"}}]
    assert lint(rewards=model) == ()
    cost = [{"name": "harm", "role": "cost", "model": {"path": "judge"}}]
    (told,) = lint(extra='{"cost": RewardSource}', rewards=[*model, *cost])
    assert "no call uses: got cost in roles()" in told


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("flow.actor.log_probs(batch)", "actor.log_probs makes what nothing reads: got actor_log"),
        (
            "flow.actor.generate(prompts, samples=1, greedy=True)",
            "actor.generate#2 makes what nothing reads",
        ),
        (
            "batch |= flow.compute(batch, GroupAdvantages('reward_scores', 'reward_valid'))",
            "compute computes what nothing reads: got GroupAdvantages of advantages, which compute#"
            "2 overwrites; remove it",
        ),
        (
            "flow.compute(batch, LagrangeMultiplier('reward_scores', 'reward_valid'))",
            "got LagrangeMultiplier of multiplier; remove it, or join its result with the batch",
        ),
        (
            "batch |= flow.critic.values(batch)",
            "critic.values makes what nothing reads: got critic_values, which critic.values#2 over",
        ),
    ],
)
def test_what_is_made_and_never_read_is_told(lint: Lint, line: str, message: str) -> None:
    (told,) = lint(line)
    assert message in told


def test_an_operation_of_which_a_later_one_reads_is_not_odd(lint: Lint) -> None:
    cost = "rewards='costs', advantages='cost_advantages', returns='cost_returns'"
    assert (
        lint(
            "rewards = TokenRewards('reward_scores', rewards='costs')",
            f"estimate = Gae(1.0, 1.0, values='critic_values', {cost})",
            "whiten = Whiten('reward_valid', advantages='cost_advantages')",
            "batch |= flow.compute(batch, rewards, estimate, whiten)",
            loss=PLAIN.replace(")", ", advantages='cost_advantages')"),
        )
        == ()
    )


@pytest.mark.parametrize(
    ("sections", "device", "why"),
    [
        ({}, Device.CPU, None),
        ({}, Device.GPU, "bfloat16"),
        ({"schedule": {"steps": 2, "promptsPerStep": 8, "miniBatchPrompts": 2}}, Device.CPU, "4"),
    ],
)
def test_log_probs_of_two_engines_are_told_where_they_differ(
    lint: Lint, sections: dict[str, Any], device: Device, why: str | None
) -> None:
    told = lint(device=device, **sections)
    assert len(told) == (why is not None)
    if why is not None:
        assert f"although {'a batch has 4' if why == '4' else 'the trainer computes in'}" in told[0]
        assert "flow.actor.log_probs(batch) and say old_log_probs='actor_log_probs'" in told[0]
    own = "ClippedLoss('reward_valid', old_log_probs='actor_log_probs')"
    assert lint("batch |= flow.actor.log_probs(batch)", loss=own, device=device, **sections) == ()


def test_a_model_of_no_role_is_told_with_the_nearest_role(lint: Lint) -> None:
    models = {name: {"source": {"builtin": "TinyLlama"}} for name in ("actor", "critc")}
    (told,) = lint(models=models)
    assert "models.critc is not used" in told and told.endswith("did you mean critic?")


def test_a_model_that_another_role_takes_is_used(lint: Lint) -> None:
    models = {
        "actor": {"source": {"builtin": "TinyLlama"}},
        "critic": {"source": {"sameAs": "start"}},
        "start": {"source": {"builtin": "TinyLlama"}},
    }
    assert lint(models=models) == ()


@pytest.mark.parametrize(
    ("role", "lines", "is_odd"),
    [
        ("actor", ["batch |= flow.actor.log_probs(batch)"], True),
        ("rollout", [], True),
        ("judge", ["batch |= flow.judge.log_probs(batch)"], False),
    ],
)
def test_a_penalty_against_a_policy_that_is_trained_is_told(
    lint: Lint, role: str, lines: list[str], is_odd: bool
) -> None:
    field = f"{role}_log_probs"
    kl = "kl_coefficient=0.1, kl_estimator=KlEstimator.K3"
    loss = f"ClippedLoss('reward_valid', {kl}, reference_log_probs={field!r})"
    told = lint(*lines, loss=loss, extra='{"judge": LanguageModel}' if role == "judge" else "{}")
    assert len(told) == is_odd
    if is_odd:
        assert f"a policy that is trained itself: got reference_log_probs={field!r}" in told[0]


def test_log_probs_of_weights_that_did_not_sample_are_told(lint: Lint) -> None:
    loss = "ClippedLoss('reward_valid', old_log_probs='actor_log_probs')"
    update = "flow.actor.train(batch, CrossEntropy())"
    join = "batch |= flow.actor.log_probs(batch)"
    (told,) = lint(update, join, loss=loss)
    assert "of actor.log_probs, after actor.train has changed actor" in told
    assert lint(join, update, loss=loss) == ()


MASK = "flow.compute(batch, Custom('json:loads', ['response_tokens'], ['response_mask']))"


def test_a_mask_that_reaches_some_of_the_calls_is_told(lint: Lint) -> None:
    assert lint(f"batch |= {MASK}") == ()
    (early,) = lint(
        f"mask = {MASK}",
        "rewards = TokenRewards('reward_scores', rewards='shaped')",
        "batch |= flow.compute(batch, rewards, Whiten('reward_valid', 'shaped')) | mask",
        loss=PLAIN.replace(")", ", advantages='shaped')"),
    )
    assert early == (
        "compute#2 counts all tokens of responses of which compute#3 counts some: got no "
        "response_mask in its batch, allowed the same mask for both; join it in front of compute#2"
    )
    (late,) = lint(
        f"batch |= {MASK}",
        "flow.actor.train(batch.select('prompt_tokens', 'response_tokens'), CrossEntropy())",
    )
    assert late.startswith("actor.train counts all tokens of responses of which compute#2 counts")


def test_a_mask_of_other_responses_is_not_odd(lint: Lint) -> None:
    greedy = "greedy = flow.actor.generate(prompts, samples=1, greedy=True)"
    mask = MASK.replace("batch", "greedy")
    train = "flow.actor.train(greedy, CrossEntropy())"
    assert lint(greedy, f"greedy |= {mask}", train) == ()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(
    name=st.sampled_from(["grpo", "ppo"]),
    kl=st.sampled_from([0.0, 0.1]),
    placement=st.sampled_from(["Reward", "Loss"]),
    epochs=st.integers(1, 2),
    mini_batch=st.sampled_from([None, 8]),
    device=st.sampled_from(Device),
)
def test_built_in_algorithms_are_never_odd(
    job: Any,
    name: str,
    kl: float,
    placement: str,
    epochs: int,
    mini_batch: int | None,
    device: Device,
) -> None:
    own: dict[str, Any] = {"klCoefficient": kl, "epochsPerBatch": epochs}
    own |= {"klPlacement": placement} if name == "ppo" else {}
    schedule = {"steps": 10, "promptsPerStep": 16, "miniBatchPrompts": mini_batch}
    made = job(algorithm={"type": name.upper(), name: own}, schedule=schedule)
    assert lint_job(made, trace_job(made, device), device) == ()


@pytest.mark.parametrize("device", Device)
def test_a_penalty_by_two_engines_is_told_where_they_round(lint: Lint, device: Device) -> None:
    """In bfloat16, which GPUs use."""
    more = "0.1, KlEstimator.K1, reference_log_probs='judge_log_probs', rewards='shaped'"
    lines = (
        "batch |= flow.judge.log_probs(batch) | flow.actor.log_probs(batch)",
        f"rewards = TokenRewards('reward_scores', {more}OWN)",
        "batch |= flow.compute(batch, rewards, Whiten('reward_valid', 'shaped'))",
    )
    loss = PLAIN.replace(")", ", advantages='shaped', old_log_probs='actor_log_probs')")
    own = ", policy_log_probs='actor_log_probs'"
    found = {
        name: lint(
            *(line.replace("OWN", name) for line in lines),
            loss=loss,
            extra='{"judge": LanguageModel}',
            device=device,
        )
        for name in ("", own)
    }
    told = [
        text for text in found[""] if "penalizes KL by log-probabilities of two engines" in text
    ]
    assert len(told) == (device is Device.GPU)
    assert not any("of two engines" in each for each in found[own])


@pytest.mark.parametrize("operation", ["MixedGroups", "GroupAdvantages", "BestAgainstWorst"])
def test_a_comparison_of_one_response_is_told(lint: Lint, operation: str) -> None:
    line = f"batch |= flow.compute(batch, {operation}('reward_scores', 'reward_valid'))"
    text = f"compares the responses to a prompt, and there is one: got {operation}"
    assert not any(text in told for told in lint(line))
    rollout = {"samplesPerPrompt": 1, "maxPromptTokens": 32, "maxResponseTokens": 32}
    assert sum(text in told for told in lint(line, rollout=rollout)) == 1


def test_an_early_stop_that_cannot_come_is_told(job: MakeJob) -> None:
    data = {"train": {"path": "a.jsonl"}, "evaluation": {"path": "b.jsonl"}}
    for steps, patience, is_told in ((9, 2, False), (9, 3, True), (10, 3, False), (3, 1, True)):
        early = {"evaluateEverySteps": 3, "earlyStop": {"patience": patience}}
        made = job(data=data, schedule={"steps": steps, "promptsPerStep": 8} | early)
        told = lint_job(made, trace_job(made), Device.CPU)
        assert [f"earlyStop.patience: {patience} has no effect" in text for text in told] == (
            [True] if is_told else []
        )


def test_a_best_model_that_is_always_the_last_is_told(job: MakeJob) -> None:
    data = {"train": {"path": "a.jsonl"}, "evaluation": {"path": "b.jsonl"}}
    warm = {"warmStart": {"maxSteps": 1, "learningRate": 0.001}}
    for saved, evaluated, more, is_told in (
        *((2, 3, {}, False), (4, 3, {}, True), (3, 12, {}, True), (0, 3, {}, True)),
        *((3, 0, {}, True), (0, 3, warm, False)),
    ):
        schedule = {"steps": 12, "promptsPerStep": 8, "evaluateEverySteps": evaluated} | more
        checkpoint = {"finalModel": "Best", "everySteps": saved}
        made = job(data=data, schedule=schedule, checkpoint=checkpoint)
        told = lint_job(made, trace_job(made), Device.CPU)
        assert any("checkpoint.finalModel: Best has no effect" in text for text in told) is is_told


def test_evaluations_without_held_out_prompts_are_told(job: MakeJob) -> None:
    schedule = {"steps": 9, "promptsPerStep": 8, "evaluateEverySteps": 3}
    train = {"train": {"path": "a.jsonl"}}
    made = job(data=train, schedule=schedule)
    (told,) = lint_job(made, trace_job(made), Device.CPU)
    assert "schedule.evaluateEverySteps: 3 has no effect without data.evaluation" in told
    for others in ({"schedule": schedule | {"evaluateEverySteps": 0}}, {"data": train}):
        quiet = job(**{"data": train} | others)
        assert lint_job(quiet, trace_job(quiet), Device.CPU) == ()
    held_out = job(data=train | {"evaluation": {"path": "b.jsonl"}}, schedule=schedule)
    assert lint_job(held_out, trace_job(held_out), Device.CPU) == ()


@pytest.mark.parametrize(("asked", "is_told"), [(31, True), (32, False), (None, False)])
def test_micro_batches_below_the_longest_sequence_are_told(
    job: MakeJob, asked: int | None, is_told: bool
) -> None:
    training = {} if asked is None else {"microBatchTokens": asked}
    models = {"actor": {"source": {"builtin": "TinyLlama"}, "training": training}}
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 20, "maxResponseTokens": 12}
    made = job(models=models, rollout=rollout)
    told = lint_job(made, trace_job(made), Device.CPU)
    assert len(told) == is_told
    assert all(
        "31 is less than the 32 tokens of the longest prompt and response" in each for each in told
    )


def test_mini_batches_of_a_loss_that_takes_all_are_told(job: MakeJob) -> None:
    data = {"train": {"path": "a.jsonl", "answerField": "answer"}}
    schedule = {"steps": 1, "promptsPerStep": 16, "miniBatchPrompts": 4}
    made = job(algorithm={"type": "SFT"}, data=data, rewards=[], schedule=schedule)
    (told,) = lint_job(made, trace_job(made), Device.CPU)
    assert "schedule.miniBatchPrompts: 4 has no effect with CrossEntropy" in told
    both = job(schedule=schedule)
    assert lint_job(both, trace_job(both), Device.CPU) == ()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (3, "3 does not divide .*: 8; a step makes 3 updates of 3 or 2 prompts, .*write 2 or 4"),
        (5, "5 does not divide .*: 8; a step makes 2 updates of 4 prompts, .*write 4, the"),
        (4, None),
        (8, None),
    ],
)
def test_mini_batches_that_do_not_divide_a_step_are_told(
    lint: Lint, asked: int, told: str | None
) -> None:
    schedule = {"steps": 1, "promptsPerStep": 8, "miniBatchPrompts": asked}
    found = [each for each in lint(schedule=schedule) if "does not divide" in each]
    assert bool(found) is (told is not None)
    assert all(re.search(told or "", each) for each in found)
    sizes = [len(part) for part in BatchShape(8).mini_batches(-(-8 // asked))]
    assert sorted(sizes) == {3: [2, 3, 3], 5: [4, 4], 4: [4, 4], 8: [8]}[asked]
