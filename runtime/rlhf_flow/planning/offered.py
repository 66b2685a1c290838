"""What a step asks for and this version does not have."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from rlhf_api.plan import Pool
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import NotOffered
from rlhf_flow.planning.placement import CallPlace, RolePlace, describe_devices
from rlhf_flow.planning.problem import PlanningProblem


def check_offered(problem: PlanningProblem, places: Mapping[str, RolePlace]) -> None:
    """Refuse steps that no runtime runs yet.

    Args:
        problem: what is planned.
        places: where each role with a model is.

    Raises:
        NotOffered: with the call, and what to write instead.
    """
    generating = [role for role, facts in problem.models.items() if facts.generates]
    by_name = {pool.name: pool for pool in problem.pools}
    for first, second in combinations(generating, 2):
        one, other = places[first].generation, places[second].generation
        check_engines(first, one, second, other, by_name[one.mesh.pool])


def check_engines(first: str, one: CallPlace, second: str, other: CallPlace, pool: Pool) -> None:
    """Refuse two roles whose engines would share processes that cannot have both.

    vLLM keeps one set of groups in a process, which a second engine takes over: it has to be on the
    same ranks, and of the same size.
    """
    here, there = one.mesh, other.mesh
    if not here.overlaps(there):
        return
    if pool.device is Device.GPU:
        raise NotOffered(
            "several roles that generate on the same GPUs are not offered yet, where an engine "
            f"that gives its memory back is alone in its process: got {first}, {second}, allowed "
            "one; generate with one of them, or place them apart with placement.groups"
        )
    if here.ranks != there.ranks:
        raise NotOffered(
            "roles that generate on some of the same devices are not offered yet: got "
            f"{first} on {describe_devices(here.ranks, here.pool)} and {second} on "
            f"{describe_devices(there.ranks, there.pool)}, allowed the same devices for both, or "
            "none in common; change placement.groups"
        )
    if one.tensor != other.tensor:
        raise NotOffered(
            "roles that generate on the same devices have engines of one size: got tensor "
            f"{one.tensor or 'left out'} for {first} and {other.tensor or 'left out'} for "
            f"{second}, allowed the same for both; change placement.groups"
        )
