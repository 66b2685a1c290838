"""Estimates of plans: against the time model asked call by call, and sums worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, OffloadDepth, Plan
from rlhf_planner.cost.analytic_layers import analytic_layers
from rlhf_planner.cost.batches import response_lengths_of
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.generation import generate_seconds
from rlhf_planner.cost.hardware import HARDWARE, RATES
from rlhf_planner.cost.micro_batches import CallRows, Lengths
from rlhf_planner.cost.plan import models_of_plan
from rlhf_planner.cost.train_and_infer import infer_seconds, train_seconds
from rlhf_planner.cost.transfers import DISPATCH_SECONDS, STORE_BYTES_PER_SECOND, reshard_seconds
from rlhf_planner.evaluate import evaluate, hardware_of_pools
from rlhf_planner.memory.generation import GenerationCall, generation_load
from rlhf_planner.placement.strategy import strategy_of
from rlhf_planner.simulation.step_tasks import simulate_step, step_tasks

from .planned_jobs import PPO, QWEN, Planned, cpus, gpus, large, planned

H100 = HARDWARE["H100"]
PROMPTS, RESPONSES = Lengths(512, 1024), response_lengths_of(512, 1024, None)


def seconds(found: Planned) -> dict[str, float]:
    estimate = evaluate(*found, hardware_of_pools(found.plan.pools))
    return {call: each.total for call, each in estimate.calls.items()}


def columns(number: int, rows: int, ranks: int) -> float:
    """What a call takes to read columns of responses."""
    return DISPATCH_SECONDS + number * rows * 512 * 4 / ranks / STORE_BYTES_PER_SECOND


def test_calls_take_what_the_time_model_says_of_their_rows(job: Any) -> None:
    ppo = {"type": "PPO", "ppo": {"klCoefficient": 0.05, "epochsPerBatch": 2}}
    schedule = {"steps": 10, "promptsPerStep": 128, "miniBatchPrompts": 32}
    found = planned(job(**large(algorithm=ppo, schedule=schedule)), gpus())
    problem, plan = found
    estimate = evaluate(problem, plan, {"a": H100})
    models, links = models_of_plan(problem, plan), Links(H100, 8)
    batch = CallRows(128 * 8, PROMPTS, RESPONSES, rows_per_prompt=8)
    layers = {
        role: analytic_layers(H100, model.shape, model.precision) for role, model in models.items()
    }
    for role in ("actor", "critic"):
        training = train_seconds(models[role], batch, layers[role], links, 4, 2)
        call = plan.call(GraphName.STEP, f"{role}.train")
        assert call is not None and call.mini_batches == 4
        got = estimate.calls[call.call]
        assert (got.compute, got.optimizer) == (training.compute, training.optimizer)
        assert got.total == pytest.approx(training.total + got.transfer)
    inferring = infer_seconds(models["reference"], batch, layers["reference"], links)
    got = estimate.calls["reference.log_probs"]
    assert got.total == pytest.approx(inferring.total + columns(2, 1024, 8))
    (engines,) = plan.generations
    load = generation_load(problem, models["actor"], strategy_of(plan).engines["actor"])
    generating = generate_seconds(
        load,
        GenerationCall(128, 8),
        engines.mesh,
        engines.kv_cache_bytes,
        PROMPTS,
        RESPONSES,
        layers["actor"],
        links,
    )
    got = estimate.calls["actor.generate"]
    assert got.total == pytest.approx(generating.total + columns(1, 1024, 8))
    moving = reshard_seconds(load.trained, engines.mesh, links)
    assert estimate.calls["actor.reshard"].total == moving.total + DISPATCH_SECONDS
    assert estimate.calls["compute"].total < 0.01 and "reward.score" not in estimate.calls


def test_pretraining_is_more_of_the_same_updates(job: Any) -> None:
    def train(rows: int | None) -> Any:
        data: dict[str, Any] = {"train": {"builtin": "SortDigits"}}
        algorithm: dict[str, Any] = {"type": "SafeRLHF"}
        if rows is not None:
            data["pretraining"] = {"builtin": "SortDigits", "rowsPerStep": rows}
            algorithm["safeRLHF"] = {"pretrainingWeight": 0.1}
        rewards = [
            {"name": role, "role": role, "function": {"entrypoint": "verifiers:exact"}}
            for role in ("reward", "cost")
        ]
        made = job(**large(algorithm=algorithm, data=data, rewards=rewards))
        found = planned(made, gpus(4))
        return evaluate(*found, {"a": H100}).calls["actor.train"]

    none, some, more = train(None), train(512), train(1024)
    assert none.compute < some.compute < more.compute
    assert none.optimizer == some.optimizer == more.optimizer


def test_on_the_same_ranks_calls_take_turns(job: Any) -> None:
    """So a step takes their sum; regions count as often as they run."""
    dpo = {"type": "OnlineDPO", "onlineDPO": {"referenceEverySteps": 4}}
    found = planned(job(algorithm=dpo), cpus(2))
    estimate = evaluate(*found, hardware_of_pools(found.plan.pools))
    each = seconds(found)
    copy = each.pop("every-4/reference.copy_weights_from")
    assert estimate.step_seconds == pytest.approx(sum(each.values()) + copy / 4)
    assert estimate.simulation.idle_share == pytest.approx(0)
    assert [use.busy_share for use in estimate.uses] == [pytest.approx(1)]
    assert estimate.memory == found.plan.memory


def test_roles_apart_work_at_the_same_time(job: Any) -> None:
    """The critic's ranks may learn while the actor's go on; both wait for what they read."""
    made = job(**large(algorithm=PPO, placement={"type": "Split"}))
    found = planned(made, gpus(2))
    estimate = evaluate(*found, {"a": H100})
    each = seconds(found)
    of_critic = sum(time for call, time in each.items() if call.startswith("critic."))
    of_actor = sum(time for call, time in each.items() if not call.startswith("critic."))
    together = of_critic + of_actor
    assert max(of_critic, of_actor) <= estimate.step_seconds < 0.99 * together
    shares = sorted(use.busy_share for use in estimate.uses)
    step = estimate.step_seconds
    assert shares == pytest.approx(sorted((of_critic / step, of_actor / step)))


def test_a_step_that_repeats_is_not_sent_ahead(job: Any) -> None:
    found = planned(job(algorithm={"type": "DAPO"}), cpus(1))
    graph = found.problem.graphs[GraphName.STEP]
    each = seconds(found)
    simulation = simulate_step(graph, found.plan, each)
    counts = {call: graph.expected_count(call) for call in each}
    assert counts["repeat/actor.reshard"] > 1 == counts["actor.train"]
    assert simulation.step_seconds == pytest.approx(
        sum(time * counts[call] for call, time in each.items())
    )
    assert simulation.begins[1][0] == simulation.ends[0][-1]


def test_tasks_are_all_calls_of_the_step_with_all_their_ranks(job: Any) -> None:
    trained = {"roles": ["actor"], "devices": 2}
    engines = {"roles": ["actor"], "calls": ["Generate"], "firstDevice": 2, "devices": 2}
    made = job(placement={"type": "Manual", "groups": [trained, engines]})
    _, plan = found = planned(made, cpus(4))
    tasks = {task.id: task for task in step_tasks(found.problem.graphs[GraphName.STEP], plan, {})}
    step = [call for call in plan.calls if call.graph is GraphName.STEP]
    assert list(tasks) == [call.call for call in step]
    for call in step:
        ranks = sorted(rank for part in tasks[call.call].ranks for rank in part.ranks)
        assert tuple(ranks) == call.ranks
    assert [part.ranks for part in tasks["actor.reshard"].ranks] == [range(2, 4), range(2)]
    assert "actor.generate" in tasks["actor.train"].after + tasks["compute"].after
    assert tasks["actor.generate"].after_previous == ("actor.train",)


def test_what_leaves_its_devices_takes_the_hosts_link(job: Any) -> None:
    model = QWEN | {"training": {"offload": "Always"}}
    found = planned(job(**large(models={"actor": model})), gpus())
    role = found.plan.role("actor")
    assert role is not None and role.offload is OffloadDepth.EVERYTHING
    calls = evaluate(*found, {"a": H100}).calls
    kinds = {call.call: call.kind for call in found.plan.calls}
    moved = {call for call, kind in kinds.items() if kind in (CallKind.LOAD, CallKind.OFFLOAD)}
    # Float32 weights and two moments of an eighth of the model.
    expected = role.num_parameters / 8 * 12 / (63e9 * 0.87)
    assert moved
    for call in moved:
        assert calls[call].host_copy == pytest.approx(expected, rel=1e-3)
        assert calls[call].bottleneck == "host_copy"


@pytest.mark.parametrize("rate", RATES)
def test_faster_devices_never_make_steps_slower(job: Any, rate: str) -> None:
    found = planned(job(**large(algorithm=PPO, placement={"type": "Split"})), gpus(2))
    faster = replace(H100, **{rate: 2 * getattr(H100, rate)})
    before, after = (evaluate(*found, {"a": each}).step_seconds for each in (H100, faster))
    assert after <= before * (1 + 1e-12)


def test_plans_have_the_estimate_of_their_devices(job: Any) -> None:
    problem, plan = found = planned(job(**large()), gpus())
    estimate = evaluate(problem, plan, {"a": H100})
    told = plan.estimate
    assert told is not None and told.hardware == {"a": "H100"}
    assert told.step_seconds == estimate.step_seconds
    assert told.seconds_by_call == seconds(found)
    assert told.tokens_per_second == pytest.approx(1024 * 1024 / estimate.step_seconds)
    assert (told.prompt_tokens, told.response_tokens) == (512, 512)
    train = next(each for each in told.calls if each.call == "actor.train")
    assert train.bottleneck == "compute"
    assert Plan.model_validate_json(plan.model_dump_json(by_alias=True)) == plan


@pytest.mark.parametrize("gpu", [None, "H900"])
def test_unknown_gpus_have_no_estimate_and_the_plan_says_so(job: Any, gpu: str | None) -> None:
    _, plan = planned(job(**large()), gpus(gpu=gpu))
    assert plan.estimate is None
    assert plan.reasons[-1].startswith("times are not estimated: how fast a device is is unknown")


def test_waits_for_tools_are_told_apart_from_generation(job: Any) -> None:
    """Conversations on one GPU, whose tools take a minute for a turn; all else takes as long."""

    def estimates(**environment: Any) -> tuple[Plan, Any]:
        rollout: dict[str, Any] = dict(large()["rollout"])
        if environment:
            rollout["environment"] = {"tools": ["a:b"], **environment}
        pool = gpus().model_copy(update={"devices_per_node": 1, "memory_bytes_per_device": 10**12})
        found = planned(job(**large(rollout=rollout)), pool)
        return found.plan, evaluate(*found, {"a": H100})

    plain, quick, slow = (
        estimates(),
        estimates(expectedTurns=3),
        estimates(expectedTurns=3, expectedToolSeconds=60),
    )
    assert plain[0].estimate is not None and plain[0].estimate.conversations is None
    calls = [each.calls for _, each in (plain, quick, slow)]
    assert [each["actor.generate"].tools > 0 for each in calls] == [False, False, True]
    # All tokens count, of turns and answers; calls also read which of them were sampled.
    computing = [
        {call: replace(parts, transfer=0.0) for call, parts in each.items()} for each in calls
    ]
    assert {c for c, parts in computing[0].items() if computing[2][c] != parts} == {
        "actor.generate"
    }
    told = slow[0].estimate
    assert told is not None and told.conversations is not None
    assert told.conversations.wait_seconds == calls[2]["actor.generate"].tools
    assert (told.conversations.turns, told.conversations.tool_seconds) == (3, 60)
    step = slow[1].step_seconds - quick[1].step_seconds
    # The last conversations also decode a little meanwhile.
    assert told.conversations.wait_seconds == pytest.approx(step, rel=0.01)


def test_rounds_of_conversations_wait_as_often_as_they_are_expected(job: Any) -> None:
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 32, "maxResponseTokens": 32}
    environment = {"tools": ["a:b"], "expectedToolSeconds": 5, "order": "Fastest"}
    made = job(algorithm={"type": "DAPO"}, rollout=rollout | {"environment": environment})
    found = planned(made, cpus(1))
    (site,) = (call.call for call in found.plan.calls if call.kind is CallKind.GENERATE)
    count = found.problem.graphs[GraphName.STEP].expected_count(site)
    calls = evaluate(*found, hardware_of_pools(found.plan.pools)).calls
    told = found.plan.estimate
    assert count > 1 and told is not None and told.conversations is not None
    assert told.conversations.wait_seconds == pytest.approx(count * calls[site].tools)
