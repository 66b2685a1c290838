"""Roles whose calls have devices of their own: where they run, what is held, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh, union_ranks
from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.plan_memory import MemoryUse
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DoesNotDivide, DoesNotFit, InvalidPlacement, NotOffered
from rlhf_planner.placement.strategy import EngineStrategy
from rlhf_planner.placement.validation import check_engines
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB

from ..phases import peaks_of
from ..pools import pool_of

PPO = {"type": "PPO", "ppo": {"klCoefficient": 0.1}}
MODELS = {"actor": {"source": {"builtin": "TinyLlama"}}}
CUT = {"training": {"engine": "Megatron", "parallelism": {"tensor": 2, "pipeline": 1}}}
TRAINED: dict[str, Any] = {"roles": ["actor", "reference"], "devices": 2}
GENERATION: dict[str, Any] = {"roles": ["actor"], "calls": ["Generate"]}
TRAINS: dict[str, Any] = {"roles": ["actor"], "calls": ["Train"]}
CRITIC: dict[str, Any] = {"roles": ["critic"]}
VALUES: dict[str, Any] = {"roles": ["critic"], "calls": ["Infer"]}


def cpus(count: int, name: str = "local", gibibytes: float = 4) -> Pool:
    return pool_of(name, Device.CPU, 1, count, int(gibibytes * GIB))


def placed(job: Any, *groups: dict[str, Any], **sections: Any) -> Any:
    given = {"algorithm": PPO, "placement": {"type": "Manual", "groups": list(groups)}}
    return job(**(given | sections))


def plan(made: Any, *pools: Pool) -> Plan:
    return make_plan(made, pools or (cpus(4),))[1]


def mesh(first: int, data: int, tensor: int = 1) -> Mesh:
    return Mesh(pool="local", first_rank=first, data=data, tensor=tensor)


def calls_of(made: Plan) -> dict[str, tuple[Mesh | None, tuple[int, ...]]]:
    return {each.call: (each.mesh, each.ranks) for each in made.calls if each.graph == "Step"}


def held(made: Plan, rank: int) -> set[tuple[str | None, MemoryUse]]:
    return {(item.role, item.what) for item in made.device_memory("local", rank).items}


def test_a_role_generates_on_other_devices_than_it_is_trained(job: Any) -> None:
    groups = [TRAINED, GENERATION | {"firstDevice": 2, "tensor": 2}, CRITIC | {"firstDevice": 1}]
    made = plan(placed(job, *groups))
    trained, engine, critic = mesh(0, 2), mesh(2, 1, tensor=2), mesh(1, 3)
    assert calls_of(made) == {
        "actor.reshard": (engine, (0, 1, 2, 3)),
        "actor.generate": (engine, (2, 3)),
        "reference.log_probs": (trained, (0, 1)),
        "critic.values": (critic, (1, 2, 3)),
        "reward.score": (None, ()),
        "compute": (trained, (0, 1)),
        "critic.train": (critic, (1, 2, 3)),
        "actor.train": (trained, (0, 1)),
    }
    reshards = [call for call in made.calls if call.kind is CallKind.RESHARD]
    assert [call.source_mesh for call in reshards] == [trained] * len(reshards)
    assert made.generations[0].mesh == engine and made.role("actor").mesh == trained  # type: ignore[union-attr]


def test_a_device_has_memory_for_what_lives_there(job: Any) -> None:
    groups = [TRAINED, GENERATION | {"firstDevice": 2, "tensor": 2}, CRITIC | {"firstDevice": 3}]
    made = plan(placed(job, *groups))
    assert [tuple(group.ranks) for group in made.memory] == [(0, 1), (2,), (3,)]
    weights, cache = MemoryUse.GENERATION_WEIGHTS, MemoryUse.KV_CACHE
    assert {what for role, what in held(made, 0) if role == "actor"} >= {
        *(MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER, MemoryUse.TRANSFER)
    }
    assert not {("actor", weights), ("actor", cache)} & held(made, 0)
    assert held(made, 2) == {
        (None, MemoryUse.OVERHEAD),
        (None, MemoryUse.STANDBY),
        *(("actor", what) for what in (weights, cache, MemoryUse.ACTIVATIONS, MemoryUse.LOGITS)),
        ("actor", MemoryUse.PACKED_WEIGHTS),
        ("actor", MemoryUse.TRANSFER),
    }
    assert {role for role, _ in held(made, 3)} == {None, "actor", "critic"}
    assert {*peaks_of(made.device_memory("local", 0))} == {
        *("actor.reshard", "actor.train", "reference.infer")
    }
    assert {*peaks_of(made.device_memory("local", 2))} == {"actor.reshard", "actor.generate"}
    assert made.engine_bytes("actor") == sum(
        item.bytes
        for item in made.device_memory("local", 2).items
        if item.role == "actor" and item.what is not MemoryUse.TRANSFER
    )
    reasons = "\n".join(made.reasons)
    assert "devices 0 to 1 of pool local: actor without its generation, reference, as" in reasons
    assert "device 2 of pool local: generation of actor, as placement.groups says" in reasons


def test_what_generates_also_where_it_is_trained(job: Any) -> None:
    made = plan(placed(job, TRAINED, GENERATION, CRITIC))
    assert calls_of(made)["actor.reshard"] == (mesh(0, 4), (0, 1, 2, 3))
    assert [tuple(group.ranks) for group in made.memory] == [(0, 1), (2, 3)]
    assert ("actor", MemoryUse.OPTIMIZER) in held(made, 1) - held(made, 2)
    assert ("actor", MemoryUse.KV_CACHE) in held(made, 1) & held(made, 2)


def test_the_rest_of_a_roles_calls_are_where_no_group_names_them(job: Any) -> None:
    groups = [{"roles": ["actor", "critic", "reference"]}, TRAINS | {"devices": 1}]
    made = plan(placed(job, *groups))
    assert calls_of(made)["actor.generate"] == (mesh(0, 4), (0, 1, 2, 3))
    assert calls_of(made)["actor.train"] == (mesh(0, 1), (0,))
    assert calls_of(made)["critic.train"] == (mesh(0, 4), (0, 1, 2, 3))


def test_a_group_cuts_the_model_that_it_trains(job: Any) -> None:
    """It, and not the role's own parallelism, says how."""
    models = {"actor": MODELS["actor"] | CUT, "critic": {"source": {"sameAs": "actor"}}}
    trained = TRAINS | {"devices": 2, "tensor": 1, "pipeline": 2}
    groups = [trained, GENERATION, CRITIC, {"roles": ["reference"], "devices": 2}]
    made = plan(placed(job, *groups, models=models))
    cut = {role.role: role.mesh for role in made.roles}
    assert cut["actor"] == Mesh(pool="local", data=1, pipeline=2)
    assert cut["reference"] == Mesh(pool="local", data=1, tensor=2)
    assert made.generations[0].mesh.tensor == 1


LARGE = {"training": {"microBatchTokens": 32768}}
"""A model whose training takes more memory than generation does, apart from the cache."""
MANY = {"steps": 10, "promptsPerStep": 512}
CACHE = {"samplesPerPrompt": 4, "maxPromptTokens": 32, "maxResponseTokens": 32} | {
    "kvCacheMemory": "512Mi"
}


def releases(made: Plan) -> list[str]:
    return [call.call for call in made.calls if call.kind is CallKind.RELEASE]


def test_nothing_is_released_where_nothing_else_is(job: Any) -> None:
    """What fits beside nothing else is kept where it is alone."""
    sections = {"algorithm": {"type": "GRPO"}, "rollout": CACHE, "schedule": MANY}
    sections["models"] = {"actor": MODELS["actor"] | LARGE}
    everywhere = plan(placed(job, {"roles": ["actor"]}, **sections), cpus(4, gibibytes=1.8))
    groups = [{"roles": ["actor"], "devices": 2}, GENERATION | {"firstDevice": 2}]
    apart = plan(placed(job, *groups, **sections), cpus(4, gibibytes=1.8))
    assert everywhere.generations[0].release_during_training and releases(everywhere)
    assert not apart.generations[0].release_during_training and not releases(apart)
    assert "generation's weights and cache stay: they fit beside all other phases" in apart.reasons


def test_a_cache_that_takes_what_is_left_is_kept_where_it_is_alone(job: Any) -> None:
    """There it has less than all sequences need, as where it is given back."""
    groups = [{"roles": ["actor"], "devices": 2}, GENERATION | {"firstDevice": 2}]
    rollout = {"maxPromptTokens": 32, "maxResponseTokens": 32, "samplesPerPrompt": 4}
    rollout["maxConcurrentSequences"] = 16384
    sections = {"rollout": rollout, "schedule": {"steps": 1, "promptsPerStep": 8192}}
    made = plan(
        placed(job, *groups, algorithm={"type": "GRPO"}, **sections), cpus(4, gibibytes=1.5)
    )
    (generation,) = made.generations
    assert not generation.release_during_training and not releases(made)
    alone = made.device_memory("local", 2)
    assert alone.peak_bytes == alone.capacity_bytes
    stays = "generation's weights and cache stay: nothing else is on the devices that generate"
    assert stays in made.reasons


def test_memory_is_given_back_to_who_shares_the_devices_that_generate(job: Any) -> None:
    """The critic is there, and the policy is not: no call of the policy needs that memory."""
    groups = [TRAINED, GENERATION | {"firstDevice": 2}, CRITIC | {"firstDevice": 2}]
    models = MODELS | {"critic": {"source": {"sameAs": "actor"}} | LARGE}
    sections = {"rollout": CACHE, "schedule": MANY, "models": models}
    made = plan(placed(job, *groups, **sections), cpus(4, gibibytes=1.8))
    assert made.generations[0].release_during_training
    names = [call.call for call in made.calls if call.graph is GraphName.STEP]
    assert names.index("actor.release") == names.index("actor.generate") + 1
    release = made.call(GraphName.STEP, "actor.release")
    assert release is not None and release.ranks == (2, 3) and release.source_mesh is None
    assert all(group.peak_bytes <= group.capacity_bytes for group in made.memory)


def test_a_device_that_only_generates_may_have_too_little_memory(job: Any) -> None:
    rollout = {"maxPromptTokens": 32, "maxResponseTokens": 32, "kvCacheMemory": "3Gi"}
    groups = [TRAINED, GENERATION | {"firstDevice": 2}, CRITIC | {"devices": 2}]
    with pytest.raises(DoesNotFit, match="devices 2 to 3 of pool local, which has") as caught:
        plan(placed(job, *groups, rollout=rollout), cpus(4, gibibytes=3))
    assert "released during training" not in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        (
            [TRAINED, CRITIC | {"devices": 2}, VALUES],
            NotOffered,
            "got Train of critic on devices 0 to 1 of pool local and Infer on devices 0 to 3 of "
            r"pool local, allowed the same devices and cut for both; write calls: \[Train, Infer\]",
        ),
        (
            [TRAINED, CRITIC, VALUES | {"tensor": 2}],
            NotOffered,
            "got Train of critic on devices 0 to 3 of pool local and Infer on devices 0 to 3 of "
            "pool local with tensor 2, allowed",
        ),
        (
            [TRAINED, {"roles": ["critic"], "calls": ["Generate"]}, CRITIC],
            InvalidPlacement,
            r"placement.groups\[1\] is for calls that critic does not have: got Generate, allowed "
            "Train, Infer; remove them, or critic, from this group",
        ),
        (
            [TRAINS, {"roles": ["reference"]}, CRITIC],
            InvalidPlacement,
            "leave calls of actor out: got no group for Generate, allowed groups for all of Train, "
            "Generate; add them",
        ),
        (
            [TRAINED, TRAINS, GENERATION, CRITIC],
            InvalidPlacement,
            r"placement.groups\[0\] has no calls of actor: got other groups for all of Train, Gen",
        ),
        (
            [TRAINED, GENERATION | {"firstDevice": 3, "devices": 2}, CRITIC],
            InvalidPlacement,
            "group of actor for Generate does not lie in its pool: got devices 3 to 4, allowed 0",
        ),
        (
            [TRAINED, GENERATION | {"firstDevice": 1, "tensor": 2}, CRITIC],
            DoesNotDivide,
            r"placement.groups\[1\].tensor cannot be 2: got 3 devices that generate, allowed one",
        ),
        (
            [TRAINED, GENERATION | {"tensor": 3}, CRITIC],
            DoesNotDivide,
            r"placement.groups\[1\].tensor cannot be 3: got 4 devices that generate",
        ),
        (
            [TRAINED | {"tensor": 2}, GENERATION, CRITIC],
            InvalidPlacement,
            r"placement.groups\[0\] cuts the model of actor, which FSDP shards: got tensor 2 x "
            "pipeline 1 = 2, allowed 1; write models.actor.training.engine: Megatron",
        ),
    ],
)
def test_groups_of_calls_that_do_not_fit_are_refused(
    job: Any, groups: list[dict[str, Any]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan(placed(job, *groups))


def test_a_cut_of_a_group_must_come_out_even(job: Any) -> None:
    models = {"actor": MODELS["actor"] | CUT, "critic": {"source": {"sameAs": "actor"}}}
    trained = {"roles": ["actor", "reference"], "devices": 3, "tensor": 2}
    message = (
        "got 3 for copies on tensor 2 x pipeline 1 = 2, and 3 / 2 = 1.5; allowed multiples of 2; "
        r"give actor such a number of devices, or change placement.groups\[0\]"
    )
    with pytest.raises(DoesNotDivide, match=message):
        plan(placed(job, trained, GENERATION, CRITIC, models=models))


def test_a_cut_of_a_group_must_divide_the_model(job: Any) -> None:
    """It is told at the group's field, not at that of the role."""
    models = {"actor": MODELS["actor"] | CUT}
    groups = [{"roles": ["actor"], "calls": ["Train"], "devices": 3, "pipeline": 3}, GENERATION]
    made = placed(job, *groups, models=models, algorithm={"type": "GRPO"})
    with pytest.raises(ManifestError) as caught:
        plan(made)
    (problem,) = caught.value.problems
    assert problem.location == ("spec", "placement", "groups", 0, "pipeline")
    assert "2 layers / 3 = 0.6667" in problem.got


def test_engines_on_the_same_devices_have_one_size(job: Any) -> None:
    """vLLM has one set of groups in a process."""
    one, other = (EngineStrategy(mesh(0, 4), tensor=tensor) for tensor in (2, None))
    with pytest.raises(NotOffered, match="got tensor 2 for actor and left out for other, allowed"):
        check_engines("actor", one, "other", other, cpus(4))
    check_engines("actor", one, "other", one, cpus(4))


def test_generation_is_in_the_pool_of_training(job: Any) -> None:
    groups = [TRAINED | {"pool": "a"}, GENERATION | {"pool": "b"}, CRITIC | {"pool": "a"}]
    message = "got actor in pool a, and its generation in b, allowed one pool for both"
    with pytest.raises(NotOffered, match=message):
        plan(placed(job, *groups), cpus(2, "a"), cpus(2, "b"))


def test_the_ranks_of_two_meshes_need_not_be_neighbours() -> None:
    assert union_ranks(mesh(3, 2), mesh(0, 1)) == (0, 3, 4)
