"""ReaL's rule, by the numbers in its source: devices and (tensor, stages) of each role."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_planner.baselines.realhf import real_heuristic
from rlhf_planner.problem.problem import PlanningProblem

from ..search.searched_jobs import gpus, ppo

MEGATRON = {"engine": "Megatron"}
SEVEN = "Qwen/Qwen3-8B"
"""36 layers, 32 heads, 8 heads of keys and values: 1, 2 and 4 tensor ranks come out even."""
LARGE = "Qwen/Qwen3-32B"
"""64 layers, 64 heads."""

Where = tuple[int, int, int, int]
"""First device, devices, tensor ranks, stages."""


def placed(problem: PlanningProblem) -> dict[str, Where]:
    """Where roles are, and the actor's engines."""
    found = real_heuristic(problem)
    meshes = {role: own.mesh for role, own in found.roles.items()}
    if problem.models["actor"].generates:
        meshes["engines"] = found.engines["actor"].mesh
    return {
        name: (mesh.first_rank, mesh.num_devices, mesh.tensor, mesh.pipeline)
        for name, mesh in meshes.items()
    }


def test_models_of_7b_on_one_node_are_trained_on_its_halves(job: Any) -> None:
    rewards = [{"model": {"huggingFace": SEVEN}}]
    found = placed(ppo(job, gpus(8), training=MEGATRON, model=SEVEN, rewards=rewards))
    assert found == {
        "engines": (0, 8, 2, 1),
        "actor": (0, 4, 2, 1),
        "critic": (4, 4, 2, 1),
        "reference": (0, 8, 4, 1),
        "reward_model": (0, 4, 1, 1),  # FSDP shards it
    }


def test_larger_models_on_one_node_have_twice_the_tensor_ranks(job: Any) -> None:
    found = placed(ppo(job, gpus(8), training=MEGATRON, model="Qwen/Qwen3-14B"))
    assert found["actor"] == (0, 4, 4, 1)
    assert found["critic"] == (4, 4, 4, 1)


def test_on_several_nodes_there_are_as_many_stages(job: Any) -> None:
    """Of 4 nodes two each: 2 stages of 4 tensor ranks, and for the reference 4 of 4."""
    rewards = [{"model": {"huggingFace": SEVEN}}]
    found = placed(ppo(job, gpus(8, 4), training=MEGATRON, model=SEVEN, rewards=rewards))
    assert found == {
        "engines": (0, 32, 4, 1),
        "actor": (0, 16, 4, 2),
        "critic": (16, 16, 4, 2),
        "reference": (0, 32, 4, 4),
        "reward_model": (0, 16, 1, 1),
    }


def test_nodes_are_shared_by_the_sizes_of_models(job: Any) -> None:
    """32.8 of 32.8 + 8.2 billion on 8 nodes: 6.4, rounded up; the other has one at least."""
    critic = {"source": {"huggingFace": SEVEN}, "training": MEGATRON}
    actor = {"source": {"huggingFace": LARGE}, "training": MEGATRON}
    models = {"actor": actor, "critic": critic}
    found = placed(ppo(job, gpus(8, 8), models=models))
    assert (found["actor"][:2], found["critic"][:2]) == ((0, 56), (56, 8))
    found = placed(ppo(job, gpus(8, 2), models=models))
    assert (found["actor"][:2], found["critic"][:2]) == ((0, 8), (8, 8))


def test_without_a_critic_everything_is_on_all_devices(job: Any) -> None:
    grpo = {"type": "GRPO", "grpo": {"klCoefficient": 0.05}}
    models = {"actor": {"source": {"huggingFace": SEVEN}, "training": MEGATRON}}
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512}
    found = placed(ppo(job, gpus(8, 4), models=models, algorithm=grpo, rollout=rollout))
    assert found == {
        "engines": (0, 32, 4, 1),
        "actor": (0, 32, 4, 4),
        "reference": (0, 32, 2, 4),
    }


def test_cuts_that_do_not_come_out_even_are_the_nearest_below(job: Any) -> None:
    """28 layers on 8 nodes, of which 4 train the actor: 4 of 8 stages would do; of 3 nodes two, and
    36 layers in 3 stages for the reference."""
    seven = "Qwen/Qwen2.5-7B"
    found = placed(ppo(job, gpus(8, 16), training=MEGATRON, model=seven))
    assert found["actor"] == (0, 64, 4, 4)
    found = placed(ppo(job, gpus(8, 3), training=MEGATRON, model=SEVEN))
    assert found["actor"] == (0, 16, 4, 2)
    assert found["critic"] == (16, 8, 4, 1)
    assert found["reference"] == (0, 24, 4, 3)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_nodes_are_parted_as_far_as_they_can(job: Any, count: int) -> None:
    found = placed(ppo(job, gpus(count), training=MEGATRON, model=SEVEN))
    halves = {1: ((0, 1), (0, 1)), 2: ((0, 1), (1, 1)), 3: ((0, 2), (2, 1))}
    assert (found["actor"][:2], found["critic"][:2]) == halves[count]
    assert found["reference"][:2] == (0, count)


def test_fsdp_is_not_cut(job: Any) -> None:
    found = placed(ppo(job, gpus(8, 2)))
    assert {where[2:] for role, where in found.items() if role != "engines"} == {(1, 1)}
    assert found["actor"][:2] == (0, 8) and found["critic"][:2] == (8, 8)
