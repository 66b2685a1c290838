"""Roles under Megatron: how their devices are cut in each placement, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.plan_memory import MemoryUse
from rlhf_api.reading.explain import explain
from rlhf_api.spec.models import TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DoesNotDivide, InvalidPlacement
from rlhf_planner import plan as plan_module
from rlhf_planner.plan import local_pools, make_plan
from rlhf_planner.problem.devices import GIB
from rlhf_sizing.config import MEGATRON_FAMILIES

from ..pools import pool_of

PPO = {"type": "PPO", "ppo": {"klCoefficient": 0.1}}
TINY = {"source": {"builtin": "TinyLlama"}}


def cpus(count: int, nodes: int = 1, name: str = "local") -> Pool:
    return pool_of(name, Device.CPU, nodes, count, 8 * GIB)


def megatron(tensor: int = 1, pipeline: int = 1, **more: Any) -> dict[str, Any]:
    """A training section."""
    parallelism = {"tensor": tensor, "pipeline": pipeline}
    return {"engine": "Megatron", "parallelism": parallelism} | more


def models(actor: Any, critic: Any = None) -> dict[str, Any]:
    critics = {} if critic is None else {"critic": {"source": {"sameAs": "actor"}} | critic}
    return {"actor": TINY | {"training": actor}} | critics


def plan(made: Any, *pools: Pool) -> Plan:
    return make_plan(made, pools)[1]


def meshes(made: Plan) -> dict[str, Mesh]:
    return {role.role: role.mesh for role in made.roles if role.mesh is not None}


def mesh(first: int, data: int, tensor: int, pipeline: int, pool: str = "local") -> Mesh:
    return Mesh(pool=pool, first_rank=first, data=data, tensor=tensor, pipeline=pipeline)


def test_devices_are_replicas_of_tensor_ranks_and_stages(job: Any) -> None:
    made = plan(job(models=models(megatron(2, 2))), cpus(4, nodes=2))
    assert meshes(made) == {"actor": mesh(0, 2, 2, 2)}
    role = made.role("actor")
    assert role is not None and role.engine is TrainingEngineType.MEGATRON
    calls = {call.kind: call.mesh for call in made.calls}
    assert calls[CallKind.TRAIN] == calls[CallKind.COMPUTE] == mesh(0, 2, 2, 2)
    assert calls[CallKind.GENERATE] == calls[CallKind.RESHARD] == mesh(0, 8, 1, 1)
    weights = next(i for i in made.memory[0].items if i.what is MemoryUse.MASTER_WEIGHTS)
    assert weights.bytes == 135_552 * 4, "half of a layer and of each table, and norms"


def test_engines_that_generate_have_a_mesh_of_their_own(job: Any) -> None:
    rollout = {"samplesPerPrompt": 2, "parallelism": {"tensor": 4}}
    made = plan(job(models=models(megatron(1, 2)), rollout=rollout), cpus(8))
    assert made.generations[0].mesh == mesh(0, 2, 4, 1)
    assert meshes(made)["actor"] == mesh(0, 4, 1, 2)


def test_a_role_that_is_left_out_is_cut_as_the_actor(job: Any) -> None:
    made = job(algorithm=PPO, models=models(megatron(2), {}))
    found = meshes(plan(made, cpus(2)))
    assert found == {
        "actor": mesh(0, 1, 2, 1),
        "reference": mesh(0, 1, 2, 1),
        "critic": mesh(0, 2, 1, 1),
    }
    engines = [role.engine for role in plan(made, cpus(2)).roles if role.mesh is not None]
    assert [each.value for each in engines if each] == ["Megatron", "Megatron", "FSDP"]


def test_sets_of_roles_get_whole_copies(job: Any) -> None:
    """Due are 6.6 devices and 5.4."""
    critic = {"training": megatron(2)}
    split = job(algorithm=PPO, models=models(megatron(2, 2), critic), placement={"type": "Split"})
    found = meshes(plan(split, cpus(12)))
    assert found["actor"] == found["reference"] == mesh(0, 2, 2, 2)
    assert found["critic"] == mesh(8, 2, 2, 1)
    with pytest.raises(
        InvalidPlacement,
        match="got 7, allowed sums of multiples of 4 .actor, reference. and 2 .critic., such as "
        "6 or 8; take such a number, or change training.parallelism",
    ):
        plan(split, cpus(7))
    with pytest.raises(InvalidPlacement, match="got 3, allowed .* such as 6;"):
        plan(split, cpus(3))


def test_sets_with_pools_of_their_own_take_them_whole(job: Any) -> None:
    pools = (cpus(4, name="a"), cpus(3, name="b"))
    made = job(algorithm=PPO, models=models(megatron(2), {}), placement={"type": "Split"})
    found = meshes(plan(made, *pools))
    assert (found["actor"], found["critic"]) == (mesh(0, 2, 2, 1, "a"), mesh(0, 3, 1, 1, "b"))
    odd = job(
        algorithm=PPO,
        models=models(megatron(2), {"training": megatron(2)}),
        placement={"type": "Split"},
    )
    with pytest.raises(DoesNotDivide, match="the devices of critic .* got 3 for copies on"):
        plan(odd, *pools)


def test_groups_are_cut_where_they_lie(job: Any) -> None:
    groups = [
        {"roles": ["actor"], "devices": 4},
        {"roles": ["reference", "critic"], "firstDevice": 4},
    ]
    made = job(
        algorithm=PPO,
        models=models(megatron(2, 2), {"training": megatron(1, 2)}),
        placement={"type": "Manual", "groups": groups},
    )
    found = meshes(plan(made, cpus(4, nodes=2)))
    assert found["actor"] == mesh(0, 1, 2, 2)
    assert found["reference"] == mesh(4, 1, 2, 2)
    assert found["critic"] == mesh(4, 2, 1, 2)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "pool", "words"),
    [
        (2, 2, cpus(6), "got 6 for copies on tensor 2 x pipeline 2 = 4, and 6 / 4 = 1.5; allowed"),
        (4, 1, cpus(2), "got 2 for copies on tensor 4 x pipeline 1 = 4, and 2 / 4 = 0.5; allowed"),
        (4, 1, cpus(6, nodes=2), "on devices 4 to 7 .* 6 / 4 = 1.5; allowed for these nodes 1, 2"),
    ],
)
def test_what_does_not_come_out_even_is_refused_with_the_sum(
    job: Any, tensor: int, pipeline: int, pool: Pool, words: str
) -> None:
    with pytest.raises(DoesNotDivide, match=words) as refused:
        plan(job(models=models(megatron(tensor, pipeline))), pool)
    assert "change models.actor.training.parallelism" in str(refused.value)


def test_what_does_not_divide_a_model_is_told_as_of_a_given_shape(job: Any) -> None:
    """All of it at once, and once for all roles that have it from one entry."""
    made = job(algorithm=PPO, models=models(megatron(3, 4), {"training": megatron(8)}))
    with pytest.raises(ManifestError) as refused:
        plan(made, cpus(24))
    tensor_ranks = "the model cannot be divided evenly among the tensor ranks"
    stages = "the layers cannot be divided evenly among the pipeline stages"
    heads = "allowed 1, 2, 4 for this model; choose such a number"
    assert [str(each) for each in refused.value.problems] == [
        f"spec.models.actor.training.parallelism.tensor: {tensor_ranks}: got tensor 3, and 4 "
        f"attention heads / 3 = 1.333, {heads}",
        f"spec.models.actor.training.parallelism.pipeline: {stages}: got pipeline 4, and 2 layers "
        "/ 4 = 0.5, allowed 1, 2 for this model; choose such a number",
        f"spec.models.critic.training.parallelism.tensor: {tensor_ranks}: got tensor 8, and 4 "
        f"attention heads / 8 = 0.5, {heads}",
    ]


def test_tensor_ranks_lie_on_one_node(job: Any) -> None:
    def of(first: int, devices: int) -> Plan:
        group = {"roles": ["actor"], "firstDevice": first, "devices": devices}
        placement = {"type": "Manual", "groups": [group]}
        return plan(job(models=models(megatron(2)), placement=placement), cpus(4, nodes=2))

    with pytest.raises(InvalidPlacement, match="tensor 2 on devices 3 to 4 .* allowed a multiple"):
        of(1, 4)
    assert meshes(of(1, 2))["actor"] == mesh(1, 1, 2, 1), "within a node it may begin anywhere"
    assert meshes(of(2, 4))["actor"] == mesh(2, 2, 2, 1)


def test_families_without_a_mapping_are_refused(job: Any, tmp_path: Path) -> None:
    gemma = {"source": {"huggingFace": "google/gemma-2-2b"}, "training": megatron(2)}
    with pytest.raises(
        ManifestError,
        match=r"spec.models.actor.training.engine: Megatron's .* model of actor: got model_type "
        "gemma2, allowed llama, mistral, qwen2, qwen3; write engine: FSDP",
    ):
        plan(job(models={"actor": gemma}), cpus(2))
    config = {"model_type": "gemma", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 64}
    config |= {"intermediate_size": 64, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = {"source": {"path": str(tmp_path)}}
    with pytest.raises(ManifestError, match="got model_type gemma,"):
        plan(job(models={"actor": read | {"training": megatron()}}), cpus(2))
    plan(job(models={"actor": read}), cpus(2))


def test_the_contract_names_the_families_that_are_mapped() -> None:
    told = explain("spec.models.actor.training.engine").lower()
    assert all(family in told for family in MEGATRON_FAMILIES)


def test_a_given_shape_is_taken_at_its_word(job: Any) -> None:
    shape = {"numLayers": 2, "hiddenSize": 64, "intermediateSize": 64, "numAttentionHeads": 4}
    shape |= {"numKeyValueHeads": 2, "headDim": 32, "vocabSize": 100}
    given = {"source": {"path": "/nowhere"}, "shape": shape, "training": megatron(2)}
    critic = {"source": {"sameAs": "actor"}, "training": megatron(4)}
    assert meshes(plan(job(models={"actor": given}), cpus(2)))["actor"] == mesh(0, 1, 2, 1)
    with pytest.raises(ManifestError, match="models.critic.* 2 key and value heads / 4 = 0.5"):
        plan(job(algorithm=PPO, models={"actor": given, "critic": critic}), cpus(4))


def online(job: Any, reference: Any) -> Any:
    algorithm = {"type": "OnlineDPO", "onlineDPO": {"referenceEverySteps": 2}}
    other = {"source": {"sameAs": "actor"}, "training": reference}
    return job(algorithm=algorithm, models=models(megatron(2)) | {"reference": other})


@pytest.mark.parametrize("reference", [megatron(2), megatron(1, 2), {}])
def test_weights_are_copied_between_all_cuts_of_the_same_devices(job: Any, reference: Any) -> None:
    made = plan(online(job, reference), cpus(4))
    copy = made.call(GraphName.STEP, "every-2/reference.copy_weights_from")
    assert copy is not None and copy.mesh == meshes(made)["reference"]


TWO = """
from rlhf_flow import Algorithm, ClippedLoss, LanguageModel, RewardSource
from rlhf_flow.step.operations import GroupAdvantages


class Two(Algorithm):
    def roles(self):
        return {"actor": LanguageModel, "other": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        flow.other.generate(prompts)
        batch = flow.actor.generate(prompts, samples=2)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"))
"""


def test_two_roles_that_generate_may_be_cut_otherwise(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two_cuts.py").write_text(TWO)
    monkeypatch.syspath_prepend(tmp_path)
    algorithm = {"type": "Custom", "custom": {"entrypoint": "two_cuts:Two"}}
    both = models(megatron(2)) | {"other": TINY}
    made = plan(job(algorithm=algorithm, models=both), cpus(2))
    assert [each.mesh for each in made.generations] == [mesh(0, 2, 1, 1)] * 2


def test_a_machine_gives_as_many_ranks_as_copies_need(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "gpu_memory_bytes", lambda: ())
    cut = models(megatron(2, 2), {"training": megatron(1, 3)})
    for kind, count in (("Colocated", 12), ("Split", 7)):
        made = job(algorithm=PPO, models=cut, placement={"type": kind})
        assert [pool.num_devices for pool in local_pools(made)] == [count]
