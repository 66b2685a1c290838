"""Roles on parts of a pool, or in several pools: where they lie, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.calls import IDLE, CallKind
from rlhf_api.exits import ExitCode
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.plan_memory import MemoryUse, phase_peaks
from rlhf_api.plan_text import describe_devices
from rlhf_api.spec.placement import PlacementSpec, RoleCalls
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import (
    DevicesUnknown,
    DoesNotDivide,
    DoesNotFit,
    InvalidPlacement,
    NotOffered,
)
from rlhf_planner import plan as plan_module
from rlhf_planner.placement.placement import (
    device_groups,
    manual_placement,
    same_devices,
)
from rlhf_planner.placement.strategy import EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.plan import make_plan, pools_of
from rlhf_planner.problem.devices import (
    GIB,
    local_inventory,
    min_devices_of_groups,
    split_machine,
)

from ..pools import pool_of

ROLES = ("actor", "reference", "critic")
KINDS = {
    "actor": frozenset(RoleCalls),
    "reference": frozenset({RoleCalls.INFER}),
    "critic": frozenset({RoleCalls.TRAIN, RoleCalls.INFER}),
}
TRAINED: dict[str, Any] = {"roles": ["actor", "reference"]}
CRITIC: dict[str, Any] = {"roles": ["critic"]}
PPO = {"type": "PPO", "ppo": {"klCoefficient": 0.1}}


def cpus(count: int, name: str = "local", gibibytes: float = 4) -> Pool:
    return pool_of(name, Device.CPU, 1, count, int(gibibytes * GIB))


def groups(*given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Manual", "groups": list(given)}


def placed(job: Any, *given: dict[str, Any]) -> Any:
    """A job with an actor, a reference and a critic, in groups."""
    return job(algorithm=PPO, placement=groups(*given))


def plan(made: Any, *pools: Pool) -> Plan:
    return make_plan(made, pools)[1]


def mesh(first_rank: int, data: int, pool: str = "local", tensor: int = 1) -> Mesh:
    return Mesh(pool=pool, first_rank=first_rank, data=data, tensor=tensor)


@pytest.mark.parametrize("placement", [{}, {"type": "Colocated"}])
def test_without_groups_every_role_is_everywhere(job: Any, placement: dict[str, Any]) -> None:
    found = manual_placement(job(placement=placement).spec.placement, KINDS, [cpus(3)])
    assert found == same_devices(dict.fromkeys(ROLES, mesh(0, 3)), ["actor"])


@pytest.mark.parametrize(
    ("given", "pools", "actor", "critic"),
    [
        ([TRAINED, CRITIC], [cpus(4)], mesh(0, 4), mesh(0, 4)),
        ([TRAINED, CRITIC | {"firstDevice": 3}], [cpus(4)], mesh(0, 4), mesh(3, 1)),
        (
            [TRAINED | {"devices": 3}, CRITIC | {"firstDevice": 1, "devices": 2}],
            [cpus(4)],
            mesh(0, 3),
            mesh(1, 2),
        ),
        (
            [CRITIC | {"pool": "b"}, TRAINED | {"pool": "a", "devices": 1}],
            [cpus(2, "a"), cpus(4, "b")],
            mesh(0, 1, "a"),
            mesh(0, 4, "b"),
        ),
        (
            [TRAINED | {"devices": 9}, CRITIC | {"firstDevice": 8}],
            [pool_of("nodes", Device.GPU, 2, 8, GIB)],
            mesh(0, 9, "nodes"),
            mesh(8, 8, "nodes"),
        ),
    ],
    ids=["together", "on a part", "overlapping", "two pools", "over nodes"],
)
def test_groups_say_where_roles_are(
    job: Any,
    given: list[dict[str, Any]],
    pools: list[Pool],
    actor: Mesh,
    critic: Mesh,
) -> None:
    found = manual_placement(placed(job, *given).spec.placement, KINDS, pools)
    assert [(role, own.devices) for role, own in found.engines.items()] == [("actor", actor)]
    meshes = {role: own.devices for role, own in found.roles.items()}
    assert meshes == {"actor": actor, "reference": actor, "critic": critic}
    assert list(found.roles) == list(ROLES)


@pytest.mark.parametrize(
    ("given", "pools", "message"),
    [
        ([TRAINED], [cpus(2)], "got no group with critic, allowed groups with all of actor, ref"),
        (
            [TRAINED, CRITIC, {"roles": ["critics"]}],
            [cpus(2)],
            "got critics, allowed actor, reference, critic; did you mean critic?",
        ),
        ([TRAINED, CRITIC, {"roles": ["x"]}], [cpus(2)], "got x, allowed .*; correct or remove it"),
        (
            [TRAINED, CRITIC | {"pool": "b"}],
            [cpus(2, "a")],
            "the group of critic is in a pool that is not there: got b, allowed a",
        ),
        (
            [TRAINED, CRITIC | {"firstDevice": 1, "devices": 2}],
            [cpus(2)],
            "the group of critic does not lie in its pool: got devices 1 to 2, allowed 0 to 1 of",
        ),
        ([TRAINED, CRITIC | {"firstDevice": 2}], [cpus(2)], "got devices 2 to 2, allowed 0 to 1"),
        (
            [TRAINED | {"devices": 3}, CRITIC],
            [cpus(2)],
            "the group of actor, reference does not lie in its pool: got devices 0 to 2",
        ),
        (
            [TRAINED | {"pool": "a"}, CRITIC | {"pool": "a"}],
            [cpus(2, "a"), cpus(2, "b")],
            "a pool that holds no role: got b, allowed pools that placement",
        ),
    ],
)
def test_groups_that_do_not_fit_the_roles_or_the_pools_are_refused(
    job: Any, given: list[dict[str, Any]], pools: list[Pool], message: str
) -> None:
    with pytest.raises(InvalidPlacement, match=message) as caught:
        manual_placement(placed(job, *given).spec.placement, KINDS, pools)
    assert caught.value.exit_code is ExitCode.MANIFEST


SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=3)


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Pool], JobStrategy]:
    """Pools, and any roles in them, each of which may generate elsewhere than it is trained."""
    pools = [cpus(size, f"pool{index}") for index, size in enumerate(draw(SIZES))]

    def place(pool: Pool) -> Mesh:
        first = draw(st.integers(0, pool.num_devices - 1))
        count = draw(st.integers(1, pool.num_devices - first))
        return mesh(first, count, pool.name)

    roles, engines = {}, {}
    for role in range(draw(st.integers(0, 6))):
        pool = draw(st.sampled_from(pools))
        roles[f"role{role}"] = RoleStrategy(place(pool))
        if draw(st.booleans()):
            engines[f"role{role}"] = EngineStrategy(place(pool))
    return pools, JobStrategy(roles, engines)


@given(placements())
def test_groups_are_all_devices_by_what_they_hold(
    made: tuple[list[Pool], JobStrategy],
) -> None:
    pools, places = made
    found = device_groups(pools, places)
    trained = [(role, own.devices) for role, own in places.roles.items()]
    generating = [(role, own.devices) for role, own in places.engines.items()]
    for pool in pools:
        of_pool = [group for group in found if group.pool == pool]
        assert [rank for each in of_pool for rank in each.ranks] == list(range(pool.num_devices))
        for group in of_pool:
            for rank in group.ranks:
                for both, holding in ((trained, group.roles), (generating, group.generating)):
                    here = {r for r, m in both if m.pool == pool.name and rank in m.ranks}
                    assert here == set(holding)
        bounds = {group.first_rank for group in of_pool} - {0}
        edges = {e for m in places.devices for e in (m.ranks.start, m.ranks.stop)}
        assert bounds <= edges, "as few as can be"


def test_devices_are_described_in_words() -> None:
    assert describe_devices(range(1, 2), "a") == "device 1 of pool a"
    assert describe_devices(range(4), "a") == "devices 0 to 3 of pool a"


@pytest.mark.parametrize(
    ("given", "least", "count", "sizes"),
    [
        ([], 1, 3, {"local": 3}),
        ([TRAINED, CRITIC], 1, 1, {"local": 1}),
        ([TRAINED | {"devices": 2}, CRITIC | {"firstDevice": 2}], 3, 5, {"local": 5}),
        ([TRAINED | {"devices": 2}, CRITIC | {"devices": 1}], 2, 5, {"local": 2}),
        ([CRITIC | {"pool": "b"}, TRAINED | {"pool": "a"}], 2, 2, {"b": 1, "a": 1}),
        ([CRITIC | {"pool": "b"}, TRAINED | {"pool": "a"}], 2, 7, {"b": 4, "a": 3}),
        (
            [CRITIC | {"pool": "b", "devices": 1}, TRAINED | {"pool": "a", "firstDevice": 1}],
            3,
            6,
            {"b": 1, "a": 5},
        ),
        ([CRITIC | {"pool": "b"}, TRAINED], 1, 2, {"b": 2}),
    ],
)
def test_a_machine_is_split_as_groups_ask(
    given: list[dict[str, Any]], least: int, count: int, sizes: dict[str, int]
) -> None:
    placement = PlacementSpec.model_validate(groups(*given) if given else {})
    assert min_devices_of_groups(placement) == least
    machine = local_inventory(count, 64 * GIB)
    pools = split_machine(machine, placement)
    assert {pool.name: pool.num_devices for pool in pools} == sizes
    assert {pool.memory_bytes_per_device for pool in pools} == {machine.memory_bytes_per_device}
    if least > 1:
        message = f"got {least - 1}, allowed at least {least}; ask for more with --devices"
        with pytest.raises(DevicesUnknown, match=message):
            split_machine(local_inventory(least - 1, 64 * GIB), placement)


def test_a_machine_has_the_pools_and_as_many_ranks_as_groups_need(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = placed(job, CRITIC | {"pool": "b"}, TRAINED | {"pool": "a", "devices": 2})
    assert [(pool.name, pool.num_devices) for pool in pools_of(apart)] == [("b", 1), ("a", 2)]
    monkeypatch.setattr(plan_module, "gpu_memory_bytes", lambda: (80 * GIB,) * 8)
    with_gpus = [(pool.name, pool.device, pool.num_devices) for pool in pools_of(apart)]
    assert with_gpus == [("b", Device.GPU, 6), ("a", Device.GPU, 2)]


def meshes_of(made: Plan) -> dict[str, Mesh | None]:
    return {call.call: call.mesh for call in made.calls if call.graph is GraphName.STEP}


def held(made: Plan, pool: str, rank: int) -> set[str | None]:
    return {item.role for item in made.device_memory(pool, rank).items if item.role}


def test_calls_and_memory_of_groups_that_share_devices(job: Any) -> None:
    made = plan(placed(job, TRAINED, CRITIC | {"firstDevice": 1}), cpus(2))
    both, second = mesh(0, 2), mesh(1, 1)
    assert meshes_of(made) == {
        "actor.reshard": both,
        "actor.generate": both,
        "reference.log_probs": both,
        "critic.values": second,
        "reward.score": None,
        "compute": both,
        "critic.train": second,
        "actor.train": both,
    }
    assert [tuple(group.ranks) for group in made.memory] == [(0,), (1,)]
    assert held(made, "local", 0) == {"actor", "reference"}
    assert held(made, "local", 1) == {"actor", "reference", "critic"}
    assert not any(phase.role == "critic" for phase in made.device_memory("local", 0).phases)
    masters = {
        (group.first_rank, item.role): item.bytes
        for group in made.memory
        for item in group.items
        if item.what is MemoryUse.MASTER_WEIGHTS
    }
    assert masters == {
        (0, "actor"): 541_312 * 2,
        (1, "actor"): 541_312 * 2,
        (1, "critic"): 533_248 * 4,
    }, "the critic is whole on its one device"
    assert all(group.peaks == phase_peaks(group.items) for group in made.memory)
    assert made.fullest is made.device_memory("local", 1)
    reasons = "\n".join(made.reasons)
    assert "device 0 of pool local: actor, reference, as placement.groups says" in reasons


def test_calls_and_memory_of_two_pools(job: Any) -> None:
    apart = placed(job, CRITIC | {"pool": "b"}, TRAINED | {"pool": "a"})
    made = plan(apart, cpus(1, "b", gibibytes=3), cpus(2, "a"))
    for call in made.calls:
        if call.kind is CallKind.SCORE:
            continue
        expected = mesh(0, 1, "b") if call.role == "critic" else mesh(0, 2, "a")
        assert call.mesh == expected, call.call
    assert made.policy_pool.name == "a" and made.num_devices == 3
    assert (made.rank_offset("b"), made.rank_offset("a")) == (0, 1)
    assert (made.roles_in("a"), made.roles_in("b")) == (("actor", "reference"), ("critic",))
    assert [group.capacity_bytes for group in made.memory] == [3 * GIB, 4 * GIB]
    assert (held(made, "b", 0), held(made, "a", 1)) == ({"critic"}, {"actor", "reference"})
    text = made.model_dump_json(by_alias=True)
    assert Plan.model_validate_json(text) == made


def test_devices_without_a_role_are_idle(job: Any) -> None:
    made = plan(placed(job, TRAINED | {"devices": 1}, CRITIC | {"devices": 1}), cpus(3))
    assert [tuple(group.ranks) for group in made.memory] == [(0,), (1, 2)]
    assert made.device_memory("local", 2).phases == (IDLE,)
    assert held(made, "local", 2) == set()


def test_a_group_that_does_not_fit_is_named(job: Any) -> None:
    training = {"microBatchTokens": 400_000}
    models = {
        "actor": {"source": {"builtin": "TinyLlama"}},
        "critic": {"source": {"sameAs": "actor"}, "training": training},
    }
    shape = {"steps": 1, "promptsPerStep": 512}
    made = job(
        algorithm=PPO,
        models=models,
        schedule=shape,
        placement=groups(TRAINED, CRITIC | {"firstDevice": 1}),
    )
    with pytest.raises(DoesNotFit) as caught:
        plan(made, cpus(2, gibibytes=2))
    text = str(caught.value)
    assert "device 1 of pool local, which has 2 CPU devices" in text and "critic" in text
    assert plan(made, cpus(2, gibibytes=16)).memory


@pytest.mark.parametrize(
    ("given", "tensor", "engines"),
    [
        (TRAINED | {"firstDevice": 2}, 2, ((2, 3),)),
        (TRAINED | {"firstDevice": 1, "devices": 2}, 2, ((1, 2),)),
        (TRAINED, 2, ((0, 2), (1, 3))),
        (TRAINED | {"devices": 3}, 2, None),
        (TRAINED | {"firstDevice": 1, "devices": 2}, 1, ((1,), (2,))),
    ],
)
def test_engines_are_ranks_of_the_mesh_wherever_it_begins(
    job: Any, given: dict[str, Any], tensor: int, engines: tuple[tuple[int, ...], ...] | None
) -> None:
    rollout = {"samplesPerPrompt": 2, "parallelism": {"tensor": tensor}}
    made = job(algorithm=PPO, rollout=rollout, placement=groups(given, CRITIC))
    if engines is None:
        with pytest.raises(DoesNotDivide, match="3 devices that generate"):
            plan(made, cpus(4))
        return
    (generation,) = plan(made, cpus(4)).generations
    assert generation.mesh.tensor_groups == engines


TWO = """
from rlhf_flow import Algorithm, CrossEntropy, LanguageModel

class Distill(Algorithm):
    def roles(self):
        return {"actor": LanguageModel, "teacher": LanguageModel}

    def step(self, flow, prompts):
        flow.actor.generate(prompts, greedy=True)
        flow.actor.train(flow.teacher.generate(prompts, samples=3), CrossEntropy())
"""


@pytest.mark.parametrize(
    ("actor", "teacher", "problem"),
    [
        ({}, {}, ""),
        ({"devices": 2}, {"firstDevice": 2}, ""),
        (
            {},
            {"firstDevice": 2},
            "got actor on devices 0 to 3 of pool local and teacher on devices 2 to 3 of pool local",
        ),
        ({"devices": 1}, {"devices": 2}, "allowed the same devices for both, or none in common"),
        ({"devices": 2}, {"devices": 2}, ""),
    ],
    ids=["everywhere", "apart", "overlapping", "one of two", "the same part"],
)
def test_two_roles_generate_on_the_same_ranks_or_apart(
    job: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    actor: dict[str, Any],
    teacher: dict[str, Any],
    problem: str,
) -> None:
    """A second engine takes over the groups of the first."""
    (tmp_path / "two_apart.py").write_text(TWO)
    monkeypatch.syspath_prepend(tmp_path)
    made = job(
        algorithm={"type": "Custom", "custom": {"entrypoint": "two_apart:Distill"}},
        models={name: {"source": {"builtin": "TinyLlama"}} for name in ("actor", "teacher")},
        rewards=[],
        placement=groups(
            {"roles": ["actor"], "devices": None} | actor, {"roles": ["teacher"]} | teacher
        ),
    )
    if problem:
        with pytest.raises(NotOffered, match=problem):
            plan(made, cpus(4))
        return
    engines = {each.role: each.mesh for each in plan(made, cpus(4)).generations}
    first, number = teacher.get("firstDevice", 0), actor.get("devices", 4)
    assert {role: tuple(each.ranks) for role, each in engines.items()} == {
        "actor": tuple(range(number)),
        "teacher": tuple(range(first, first + number)),
    }
