"""Split and Standalone: which roles are apart, on how many devices, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.mesh import Mesh
from rlhf_api.plan import Plan, Pool
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import InvalidPlacement, NotOffered
from rlhf_planner import plan as plan_module
from rlhf_planner.placement.role_sets import share_devices
from rlhf_planner.plan import local_pools, make_plan
from rlhf_planner.problem.devices import GIB

from ..pools import pool_of

PPO = {"type": "PPO", "ppo": {"klCoefficient": 0.1}}


def cpus(count: int, name: str = "local") -> Pool:
    return pool_of(name, Device.CPU, 1, count, 4 * GIB)


def plan(job: Any, kind: str, *pools: Pool, **sections: Any) -> Plan:
    made = job(**({"algorithm": PPO, "placement": {"type": kind}} | sections))
    return make_plan(made, pools)[1]


def meshes(made: Plan) -> dict[str, Mesh]:
    return {role.role: role.mesh for role in made.roles if role.mesh is not None}


def test_split_puts_language_models_before_critics(job: Any) -> None:
    made = plan(job, "Split", cpus(2))
    actor, critic = Mesh(pool="local", data=1), Mesh(pool="local", first_rank=1, data=1)
    assert meshes(made) == {"actor": actor, "reference": actor, "critic": critic}
    assert any("critic, as placement Split puts" in reason for reason in made.reasons)
    by_role = {call.role: call.mesh for call in made.calls}
    assert by_role[None] == actor, "numerics run beside the policy"


def test_devices_go_by_what_is_trained_and_read(job: Any) -> None:
    """4 passes over the actor and 1 over the reference against 4 over the critic."""
    found = meshes(plan(job, "Split", cpus(11)))
    assert (found["actor"].data, found["critic"].data) == (6, 5)
    alone = meshes(plan(job, "Standalone", cpus(12)))
    assert [alone[name].data for name in ("actor", "reference", "critic")] == [5, 2, 5]
    assert [alone[name].first_rank for name in ("actor", "reference", "critic")] == [0, 5, 7]


def test_a_pool_for_each_set_is_taken_whole(job: Any) -> None:
    found = meshes(plan(job, "Split", cpus(3, "a"), cpus(2, "b")))
    assert found["reference"] == Mesh(pool="a", data=3)
    assert found["critic"] == Mesh(pool="b", data=2)


WORKS = st.lists(st.integers(1, 10**12), min_size=2, max_size=6)


@given(WORKS, st.integers(-3, 100), st.data())
def test_shares_are_all_devices_in_multiples_or_there_are_none(
    works: list[int], more: int, data: st.DataObject
) -> None:
    sizes = st.lists(st.integers(1, 6), min_size=len(works), max_size=len(works))
    multiples = data.draw(sizes)
    counts = share_devices(max(1, len(works) + more), works, multiples)
    if counts is None:
        assert not is_sum(max(1, len(works) + more), multiples)
        return
    assert sum(counts) == max(1, len(works) + more)
    assert all(
        count >= multiple and count % multiple == 0
        for count, multiple in zip(counts, multiples, strict=True)
    )


def is_sum(number: int, sizes: list[int]) -> bool:
    """Whether a number is a sum of multiples of all sizes, at least one of each; by trying."""
    *others, last = sizes
    if not others:
        return number >= last and number % last == 0
    return any(is_sum(number - part, others) for part in range(last, number, last))


@given(WORKS, st.integers(0, 100))
def test_shares_are_within_one_device_of_what_is_due(works: list[int], more: int) -> None:
    counts = share_devices(len(works) + more, works, [1] * len(works))
    exact = [more * work / sum(works) for work in works]
    assert counts is not None
    assert all(abs(count - 1 - each) < 1 for count, each in zip(counts, exact, strict=True))


@pytest.mark.parametrize(
    ("num_devices", "works", "multiples", "shares"),
    [
        (8, [4, 1, 4], [4, 1, 1], [4, 1, 3]),
        (8, [5, 12], [4, 1], [4, 4]),
        (16, [3, 1], [4, 4], [12, 4]),
        (16, [1, 1], [1, 8], [8, 8]),
        (12, [5, 4], [4, 2], [8, 4]),
        (12, [1, 20], [2, 8], [4, 8]),
        (13, [1, 1], [4, 3], [4, 9]),
        (12, [1, 1], [8, 8], None),
        (9, [1, 1], [2, 4], None),
    ],
)
def test_shares_worked_out_by_hand(
    num_devices: int, works: list[int], multiples: list[int], shares: list[int] | None
) -> None:
    assert share_devices(num_devices, works, multiples) == shares


def test_engines_of_several_ranks_get_a_multiple_of_them(job: Any) -> None:
    rollout = {"samplesPerPrompt": 2, "parallelism": {"tensor": 2}}
    found = meshes(plan(job, "Split", cpus(6), rollout=rollout))
    assert (found["actor"].data, found["critic"].data) == (4, 2), "due are 3.2 and 2.8"


@pytest.mark.parametrize(
    ("kind", "devices", "words"),
    [
        ("Split", 1, "got 1 for 2 .actor, reference; critic., allowed at least 2"),
        ("Standalone", 2, "got 2 for 3 .actor; reference; critic., allowed at least 3"),
    ],
)
def test_too_few_devices_are_told_with_the_sets(
    job: Any, kind: str, devices: int, words: str
) -> None:
    with pytest.raises(InvalidPlacement, match=words):
        plan(job, kind, cpus(devices))


def test_what_has_one_set_is_colocated(job: Any) -> None:
    for kind, algorithm in (("Split", {"type": "GRPO"}), ("Standalone", {"type": "GRPO"})):
        with pytest.raises(InvalidPlacement, match=f"{kind} has nothing to place apart: got actor"):
            plan(job, kind, cpus(2), algorithm=algorithm)


def test_pools_are_as_many_as_sets(job: Any) -> None:
    with pytest.raises(InvalidPlacement, match="got 2 pools for 3 sets"):
        plan(job, "Standalone", cpus(2, "a"), cpus(2, "b"))


def test_a_reference_that_catches_up_stays_with_its_actor(job: Any) -> None:
    algorithm = {"type": "OnlineDPO", "onlineDPO": {"referenceEverySteps": 2}}
    with pytest.raises(NotOffered, match="cannot copy between other devices"):
        plan(job, "Standalone", cpus(2), algorithm=algorithm)


def test_a_machine_gives_each_set_a_rank(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "gpu_memory_bytes", lambda: ())
    kinds = (PlacementType.COLOCATED, PlacementType.SPLIT, PlacementType.STANDALONE)
    made = [job(algorithm=PPO, placement={"type": kind.value}) for kind in kinds]
    assert [pool.num_devices for each in made for pool in local_pools(each)] == [1, 2, 3]
    with pytest.raises(InvalidPlacement, match="nothing to place apart"):
        local_pools(job(placement={"type": "Split"}))
