"""Roles that leave their devices to others: which, where in a pass, and what memory that takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.calls import TRANSITIONS, CallKind
from rlhf_api.plan import GraphName, OffloadDepth, Plan
from rlhf_api.plan_memory import MemoryPlan, MemoryUse
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DoesNotFit
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.memory.offloading import roles_on_device, with_offloading
from rlhf_planner.placement.transitions import LIGHT, with_transitions
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB
from rlhf_planner.problem.model_shapes import WELL_KNOWN_MODELS

from ..named_calls import calls
from ..phases import names_of, peaks_of
from ..pools import pool_of

ROLES = ("actor", "critic", "reference")


def needs_ranks_of(call: ModelCall, role: str) -> bool:
    far = role.startswith("far") or str(call.role).startswith("far")
    return role == call.role or not far


def share_ranks(call: ModelCall, other: ModelCall) -> bool:
    return needs_ranks_of(call, str(other.role))


def completed(names: Iterable[str], offloaded: Iterable[str] = ROLES) -> list[ModelCall]:
    resharded = with_transitions(calls(names), {"actor"}, share_ranks)
    return with_offloading(resharded, set(offloaded), needs_ranks_of)


def planned(*names: str, offloaded: Iterable[str] = ROLES) -> list[str]:
    return [call.id for call in completed(names, offloaded)]


def test_a_role_is_there_for_its_own_calls_and_for_no_others() -> None:
    step = ("actor.generate", "reference.log_probs", "compute", "critic.train", "actor.train")
    assert planned(*step) == [
        *("actor.load", "actor.reshard", "actor.offload", "actor.generate", "actor.release"),
        *("reference.load", "reference.log_probs", "reference.offload", "critic.load"),
        *("compute", "critic.train", "critic.offload"),
        *("actor.load#2", "actor.train", "actor.offload#2"),
    ]


def test_a_role_stays_until_another_needs_its_memory() -> None:
    step = ("actor.log_probs", "compute", "reward.score", "far.train", "actor.train")
    assert planned(*step) == ["actor.load", *step, "actor.offload"]


def test_roles_that_are_not_offloaded_stay_and_drive_others_away() -> None:
    step = ("critic.train", "actor.log_probs", "critic.train#2")
    assert planned(*step, offloaded={"critic"}) == [
        *("critic.load", "critic.train", "critic.offload"),
        *("actor.log_probs", "critic.load#2", "critic.train#2", "critic.offload#2"),
    ]
    assert planned(*step, offloaded=()) == list(step)


def test_nothing_is_loaded_where_a_region_begins_or_ends() -> None:
    step = ("actor.train", "every-10/actor.log_probs", "every-10/actor.train", "actor.train#2")
    assert planned(*step) == [
        *("actor.load", "actor.train", "actor.offload"),
        *("every-10/actor.load", "every-10/actor.log_probs", "every-10/actor.train"),
        *("every-10/actor.offload", "actor.load#2", "actor.train#2", "actor.offload#2"),
    ]


def test_a_copy_needs_both_roles() -> None:
    step = ("reference.log_probs", "actor.train", "reference.copy_weights_from")
    assert planned(*step) == [
        *("reference.load", "reference.log_probs", "reference.offload"),
        *("actor.load", "actor.train", "reference.load#2", "reference.copy_weights_from"),
        *("actor.offload", "reference.offload#2"),
    ]


SITES = (
    *("actor.generate", "actor.train", "actor.log_probs", "reward.score", "compute"),
    *("reference.log_probs", "critic.train", "far_critic.train"),
    *("reference.copy_weights_from", "critic.copy_weights_from"),
    *("every-2/actor.generate", "every-2/critic.train"),
    *("repeat/actor.generate", "repeat/reference.log_probs", "repeat/compute"),
)


@given(
    st.lists(st.sampled_from(SITES), max_size=9),
    st.lists(st.integers(0, 3), min_size=6),
    st.sets(st.sampled_from(ROLES)),
)
def test_every_call_finds_what_it_needs_and_nothing_else(
    names: list[str], runs: list[int], offloaded: set[str]
) -> None:
    """However often regions run: what is loaded, followed through two passes."""
    made = completed([f"{name}#{number}" for number, name in enumerate(names)], offloaded)
    assert len({call.id for call in made}) == len(made)
    loaded: set[str] = set()
    counts = itertools.cycle(runs)
    for _ in range(2):
        for region, body in itertools.groupby(made, lambda call: call.id.rpartition("/")[0]):
            inside = list(body)
            count = next(counts)
            times = {"": 1, "every-2": count % 2, "repeat": max(1, count)}[region]
            for call in inside * times:
                role = str(call.role)
                if call.kind is CallKind.LOAD:
                    assert role not in loaded
                    loaded.add(role)
                elif call.kind is CallKind.OFFLOAD:
                    loaded.remove(role)
                elif call.kind not in (*LIGHT, CallKind.RELEASE) and not role.startswith("far"):
                    assert loaded == roles_on_device(call) & offloaded
        assert not loaded, "checkpoints and evaluations come between passes"


LLAMA = {"huggingFace": "meta-llama/Llama-3.1-8B"}
NUMBER = WELL_KNOWN_MODELS["meta-llama/Llama-3.1-8B"].num_parameters


def ppo(job: Any, **offload: str) -> Any:
    """Actor, critic and reference of 8 B parameters each."""

    def model(role: str) -> dict[str, Any]:
        training = {"activationRecompute": True, "microBatchTokens": 2048}
        training |= {"offload": offload[role]} if role in offload else {}
        return {"source": LLAMA if role == "actor" else {"sameAs": "actor"}, "training": training}

    return job(
        algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.1}},
        models={role: model(role) for role in ROLES},
        rollout={"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512},
        schedule={"steps": 10, "promptsPerStep": 8},
    )


def plan(made: Any, gibibytes: float, device: Device = Device.GPU) -> Plan:
    return make_plan(made, (pool_of("pool", device, 1, 8, int(gibibytes * GIB)),))[1]


def memory_of(made: Plan) -> MemoryPlan:
    (memory,) = made.memory
    return memory


def peak(made: Plan, phase: str) -> int:
    return peaks_of(memory_of(made))[phase]


def margin_of(made: Plan) -> int:
    """Two hundredths of a device."""
    (margin,) = (item for item in memory_of(made).items if item.what is MemoryUse.MARGIN)
    assert margin.bytes == -(-memory_of(made).capacity_bytes // 50)
    return margin.bytes


def offloaded_in(made: Plan) -> set[str]:
    return set(depths(made))


def test_roles_are_offloaded_only_where_not_everything_fits(job: Any) -> None:
    roomy, tight = plan(ppo(job), 80), plan(ppo(job), 30)
    assert not offloaded_in(roomy) and offloaded_in(tight) == set(ROLES)
    assert not any(call.kind in (CallKind.LOAD, CallKind.OFFLOAD) for call in roomy.calls)
    assert not any("offloaded" in reason for reason in roomy.reasons)
    told = [reason for reason in tight.reasons if "offloaded" in reason]
    assert "actor, critic, reference; not everything fits" in told[0]
    # Weights, and of trained roles in float32 with two moments: all of it shared by eight.
    critic = NUMBER - 128256 * 4096 + 4096
    copies = (12 * NUMBER + 12 * critic + 2 * NUMBER) / 8
    assert f"pinned memory of the host, up to {copies / GIB:.2f} GiB for each device" in told[1]


def test_an_offloaded_role_takes_memory_while_it_works(job: Any) -> None:
    """By hand: weights, moments and a process of 2 GiB; what computations take stays as it was."""
    made, stays = plan(ppo(job), 30), plan(ppo(job), 80)
    items = {(item.role, item.what): item for item in memory_of(made).items}
    masters, moments = (
        items["actor", MemoryUse.MASTER_WEIGHTS],
        items["actor", MemoryUse.OPTIMIZER],
    )
    assert (masters.bytes, moments.bytes) == (4 * NUMBER // 8, 8 * NUMBER // 8)
    for item in (masters, moments):
        assert {*names_of(item)} == {"actor.reshard", "actor.infer", "actor.train"}
    assert names_of(items["reference", MemoryUse.WEIGHTS]) == ("reference.infer",)
    assert {*names_of(items["critic", MemoryUse.OPTIMIZER])} == {"critic.infer", "critic.train"}
    critic = NUMBER - 128256 * 4096 + 4096
    others = {
        "actor.train": 12 * critic // 8 + 2 * NUMBER // 8,
        "critic.train": 12 * NUMBER // 8 + 2 * NUMBER // 8,
        "reference.infer": 12 * NUMBER // 8 + 12 * critic // 8,
    }
    released = {item.what for item in memory_of(stays).items if item.role == "actor"}
    assert MemoryUse.KV_CACHE in released
    tight = plan(ppo(job, **dict.fromkeys(ROLES, "Never")), 40)
    assert not offloaded_in(tight)
    more_margin = margin_of(tight) - margin_of(made)
    for phase, size in others.items():
        fell = peak(tight, phase) - peak(made, phase)
        assert fell == size + more_margin, phase


def test_what_does_not_fit_even_so_is_refused_with_the_sum_of_what_was_tried(job: Any) -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan(ppo(job), 20)
    text = str(caught.value)
    assert "actor, critic, reference offloaded while others work)" in text
    assert "actor Optimizer" in text and "critic Optimizer" not in text
    with pytest.raises(DoesNotFit) as caught:
        plan(ppo(job, **dict.fromkeys(ROLES, "Never")), 30)
    text = str(caught.value)
    assert "critic Optimizer" in text and "offloaded while others" not in text
    assert "- leave out models.actor.training.offload" in text


def test_the_manifest_says_which_roles_are_offloaded(job: Any) -> None:
    assert offloaded_in(plan(ppo(job, critic="Always"), 80)) == {"critic"}
    assert offloaded_in(plan(ppo(job, critic="Never"), 38)) == set()
    assert offloaded_in(plan(ppo(job, critic="Never"), 36)) == {"actor", "reference"}
    reasons = plan(ppo(job, critic="Always"), 30).reasons
    assert any("offloaded: critic; as training.offload says" in reason for reason in reasons)
    assert any("offloaded: actor, reference; not everything" in reason for reason in reasons)
    on_cpus = plan(ppo(job, critic="Always"), 100, Device.CPU)
    assert any("are in temporary files" in reason for reason in on_cpus.reasons)


@pytest.mark.parametrize("gibibytes", [30, 80])
def test_the_driver_sends_all_calls_of_a_plan_in_its_order(job: Any, gibibytes: int) -> None:
    made = plan(ppo(job), gibibytes)
    for graph in GraphName:
        planned = [call for call in made.calls if call.graph is graph]
        sent = []
        for call in planned:
            if call.kind not in TRANSITIONS:
                before, after = made.transitions(graph, call.call)
                sent += [*before, call, *after]
        assert sent == planned
        assert all(call.mesh is not None for call in planned if call.kind in TRANSITIONS)


def policy_alone(job: Any) -> Any:
    """Of 8 B parameters, with a cache of 40 GiB on each rank."""
    training = {"activationRecompute": True, "microBatchTokens": 2048}
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512}
    return job(
        models={"actor": {"source": LLAMA, "training": training}},
        rollout=rollout | {"kvCacheMemory": "40Gi", "parallelism": {"tensor": 1}},
        schedule={"steps": 10, "promptsPerStep": 8},
    )


def test_a_role_alone_leaves_its_devices_to_its_own_generation(job: Any) -> None:
    """By hand: a cache of 40 GiB, 15 GiB of weights, and 11 GiB of training state."""
    asked = policy_alone(job)
    roomy, tight = plan(asked, 75), plan(asked, 65)
    assert (offloaded_in(roomy), offloaded_in(tight)) == (set(), {"actor"})
    fell = peak(roomy, "actor.generate") - peak(tight, "actor.generate")
    fell -= margin_of(roomy) - margin_of(tight)
    assert fell == 12 * NUMBER // 8


def grpo_with_megatron(job: Any, **training: Any) -> Any:
    """Of 8 B parameters, and a reference that FSDP reads; a cache of 24 GiB on each rank."""
    actor = {"engine": "Megatron", "activationRecompute": True, "microBatchTokens": 2048}
    parallelism = {"tensor": 2, "sequence": True}
    return job(
        algorithm={"type": "GRPO", "grpo": {"klCoefficient": 0.1}},
        models={
            "actor": {"source": LLAMA, "training": actor | {"parallelism": parallelism} | training},
            "reference": {"source": {"sameAs": "actor"}, "training": {"offload": "Never"}},
        },
        rollout={
            **{"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512},
            "kvCacheMemory": "24Gi",
            "parallelism": {"tensor": 1},
        },
        schedule={"steps": 10, "promptsPerStep": 8},
    )


def depths(made: Plan) -> dict[str, OffloadDepth]:
    found = {role.role: role.offload for role in made.roles}
    return {role: depth for role, depth in found.items() if depth is not OffloadDepth.NOTHING}


def test_what_can_be_made_anew_leaves_before_what_must_be_copied(job: Any) -> None:
    """By hand: of half the parameters on each rank, 2 bytes follow from masters, which stay."""
    asked = grpo_with_megatron(job)
    stays, tight, tighter = (plan(asked, gibibytes) for gibibytes in (68, 60, 50))
    assert depths(stays) == {}
    assert depths(tight) == {"actor": OffloadDepth.DERIVED}
    assert depths(tighter) == {"actor": OffloadDepth.EVERYTHING}
    half = NUMBER // 2 + (2 * 32 + 1) * 4096 // 2  # norms are whole on both tensor ranks
    fell = peak(stays, "reference.infer") - peak(tight, "reference.infer")
    fell -= margin_of(stays) - margin_of(tight)
    held = {item.what: item for item in memory_of(tight).items if item.role == "actor"}
    assert held[MemoryUse.WEIGHTS].bytes == 2 * half
    assert {*names_of(held[MemoryUse.WEIGHTS])} == {"actor.reshard", "actor.infer", "actor.train"}
    assert names_of(held[MemoryUse.GRADIENTS]) == ("actor.train",)
    assert fell == 2 * half
    moves = [call.call for call in tight.calls if call.graph is GraphName.STEP]
    assert moves[:4] == ["actor.load", "actor.reshard", "actor.offload", "actor.generate"]
    assert any(
        reason.endswith("master weights: actor; not everything fits on the devices at once")
        for reason in tight.reasons
    )
    assert not any("copies of what is offloaded" in reason for reason in tight.reasons)


def test_the_manifest_says_that_only_what_can_be_made_anew_leaves(job: Any) -> None:
    made = plan(grpo_with_megatron(job, offload="Derived"), 80)
    assert depths(made) == {"actor": OffloadDepth.DERIVED}
    assert any("actor; as training.offload says" in reason for reason in made.reasons)
    with pytest.raises(DoesNotFit, match=r"- leave out models\.actor\.training\.offload"):
        plan(grpo_with_megatron(job, offload="Derived"), 50)


def test_a_role_that_takes_over_the_actors_settings_may_leave_all_the_same(job: Any) -> None:
    """Nothing of a reference follows from masters: what the actor is told holds it nowhere."""

    def asked(**models: Any) -> Any:
        made = grpo_with_megatron(job, offload="Derived").spec
        return job(
            algorithm=made.algorithm,
            models={"actor": made.models["actor"], **models},
            rollout=made.rollout,
            schedule=made.schedule,
        )

    def reference(**training: Any) -> Any:
        return {"source": {"sameAs": "actor"}, "training": {"engine": "Megatron", **training}}

    left_out, named = asked(), asked(reference=reference(offload="Derived"))
    assert depths(plan(left_out, 80)) == {"actor": OffloadDepth.DERIVED}
    assert not any("gives nothing back of" in reason for reason in plan(left_out, 80).reasons)
    assert any("gives nothing back of reference" in reason for reason in plan(named, 80).reasons)
    least = next(size for size in range(40, 80) if fits(left_out, size))
    assert depths(plan(left_out, least)) == {
        "actor": OffloadDepth.DERIVED,
        "reference": OffloadDepth.EVERYTHING,
    }
    assert not fits(asked(reference=reference(offload="Never")), least)


def fits(asked: Any, gibibytes: float) -> bool:
    try:
        plan(asked, gibibytes)
    except DoesNotFit:
        return False
    return True


def test_weights_that_are_their_own_masters_cannot_be_made_anew(job: Any) -> None:
    exact = grpo_with_megatron(job, offload="Derived", precision="float32")
    made = plan(exact, 100)
    assert depths(made) == {}
    assert any("Derived gives nothing back of actor: only roles" in each for each in made.reasons)
    assert depths(plan(grpo_with_megatron(job, precision="float32"), 75)) == {
        "actor": OffloadDepth.EVERYTHING
    }


def test_an_engine_starts_in_what_roles_leave_of_a_device(job: Any) -> None:
    """vLLM starts where as much is free as it is told to take. That is there once roles have left
    as planned, and would not be beside the role's own trainer."""
    made = plan(policy_alone(job), 64)
    memory = memory_of(made)
    engine = made.engine_bytes("actor")
    stays = peaks_of(memory)["actor.generate"] - engine
    assert engine <= memory.capacity_bytes - stays
    assert engine > memory.capacity_bytes - stays - 4 * NUMBER // 8
