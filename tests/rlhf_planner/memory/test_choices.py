"""What plans do themselves where memory is short, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.plan import OffloadDepth, Plan
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DoesNotFit
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB

from ..pools import pool_of

QWEN = {"source": {"huggingFace": "Qwen/Qwen2.5-7B"}}
SECTIONS: dict[str, Any] = {
    "rollout": {"samplesPerPrompt": 8, "maxPromptTokens": 1024, "maxResponseTokens": 2048},
    "schedule": {"steps": 10, "promptsPerStep": 128},
}


def plan(job: Any, gibibytes: float, device: Device = Device.GPU, **training: Any) -> Plan:
    made = job(models={"actor": QWEN | {"training": training}}, **SECTIONS)
    devices = pool_of("pool", device, 1, 8, int(gibibytes * GIB))
    return make_plan(made, (devices,))[1]


def chosen(made: Plan, role: str = "actor") -> tuple[int | None, bool, bool]:
    """Tokens of a micro-batch, whether activations are recomputed, whether it is offloaded."""
    found = made.role(role)
    assert found is not None
    is_offloaded = found.offload is not OffloadDepth.NOTHING
    return found.micro_batch_tokens, found.recomputes, is_offloaded


def test_the_less_memory_the_more_time_is_given_for_it(job: Any) -> None:
    """Smaller micro-batches down to 4096 tokens, then recomputation, then offloading."""
    steps = list(dict.fromkeys(chosen(plan(job, gibibytes)) for gibibytes in range(160, 24, -1)))
    kept = [(16384, False, False), (8192, False, False), (4096, False, False)]
    recomputed = [(16384, True, False), (8192, True, False), (4096, True, False)]
    assert steps[:5] == [*kept, *recomputed[:2]]
    places = [is_offloaded for _, _, is_offloaded in steps]
    assert places == sorted(places), "what is offloaded comes last"
    with pytest.raises(DoesNotFit):
        plan(job, 20)


def test_what_was_chosen_is_told_with_the_reason(job: Any) -> None:
    def reasons(*words: str, **training: Any) -> list[str]:
        made = plan(job, 38, **training)
        return [reason for reason in made.reasons if all(word in reason for word in words)]

    assert reasons("activations of actor are computed again", "do not fit otherwise")
    said = reasons("activations of actor", activationRecompute=True)
    assert said == [
        "activations of actor are computed again for the backward pass: as "
        "training.activationRecompute says"
    ]
    kept = plan(job, 60, activationRecompute=False).reasons
    assert not any("activations" in reason for reason in kept)


@pytest.mark.parametrize("gibibytes", [30, 60, 90, 150])
@pytest.mark.parametrize(
    "training",
    [
        {"activationRecompute": False},
        {"activationRecompute": True},
        {"microBatchTokens": 5000},
        {"activationRecompute": False, "microBatchTokens": 5000, "offload": "Never"},
    ],
    ids=str,
)
def test_what_the_manifest_says_stays(job: Any, gibibytes: int, training: dict[str, Any]) -> None:
    try:
        tokens, recomputes, is_offloaded = chosen(plan(job, gibibytes, **training))
    except DoesNotFit:
        assert training.get("activationRecompute") is False and gibibytes < 60
        return
    assert recomputes == training.get("activationRecompute", recomputes)
    assert tokens == training.get("microBatchTokens", tokens)
    assert not (is_offloaded and training.get("offload") == "Never")


def test_cpus_recompute_only_where_the_smallest_micro_batches_do_not_fit(job: Any) -> None:
    found = [chosen(plan(job, size, Device.CPU)) for size in range(160, 50, -5)]
    kept = [tokens for tokens, recomputes, _ in found if not recomputes]
    assert kept == sorted(kept, key=lambda tokens: -(tokens or 0))
    assert kept[-1] == 2048, "the longest sequence has 3072 tokens: at 1024 nothing is less"
    assert found[0] == (4096, False, False) and found[-1][1]


def test_only_roles_that_need_it_recompute(job: Any) -> None:
    """A large actor beside a small critic; the plan of the small one is that without need."""
    models = {"actor": QWEN, "critic": {"source": {"huggingFace": "Qwen/Qwen2.5-0.5B"}}}
    made = job(
        models=models,
        algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.05}},
        rollout={"maxPromptTokens": 1024, "maxResponseTokens": 8192},
        schedule=SECTIONS["schedule"],
    )
    devices = pool_of("pool", Device.GPU, 1, 8, 63 * GIB)
    found = make_plan(made, (devices,))[1]
    assert chosen(found) == (16384, True, False)
    assert chosen(found, "critic") == (16384, False, False)
    assert chosen(found, "reference") == (16384, False, False)


def test_a_manifest_is_planned_alike_again(job: Any) -> None:
    assert plan(job, 40) == plan(job, 40)
