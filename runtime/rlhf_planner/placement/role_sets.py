"""Placements that follow from what roles are: which are placed apart, and on how many devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm

from rlhf_api.plan import Mesh, ModelHead
from rlhf_api.spec.placement import PlacementType
from rlhf_flow.errors import InvalidPlacement
from rlhf_planner.problem.problem import ModelFacts, PlanningProblem

RoleSets = tuple[tuple[str, ...], ...]
"""Roles that share devices, that with the policy first."""

TRAINING_PASSES = 3
"""Of a trained role, beside the one of inference or generation: a backward pass takes two."""


def role_sets(kind: PlacementType, heads: Mapping[str, ModelHead], policy: str) -> RoleSets:
    """The sets of roles with a model that a placement puts on devices of their own.

    Args:
        kind: Split or Standalone.
        heads: of all roles with a model.
        policy: the role that stands for the job.

    Raises:
        InvalidPlacement: there is one set only.
    """
    with_model = sorted(heads, key=lambda name: name != policy)
    if kind is PlacementType.STANDALONE:
        sets: RoleSets = tuple((name,) for name in with_model)
    else:
        like = [name for name in with_model if heads[name] is heads[policy]]
        others = [name for name in with_model if name not in like]
        sets = tuple(tuple(half) for half in (like, others) if half)
    if len(sets) == 1:
        raise InvalidPlacement(
            f"placement {kind.value} has nothing to place apart: got {', '.join(with_model)}, "
            f"allowed {_what_is_apart(kind)}; write type: Colocated, or add such a role"
        )
    return sets


def set_multiples(
    sets: RoleSets, copies: Mapping[str, int], engine_tensor: int | None
) -> tuple[int, ...]:
    """What the devices of each set are a multiple of: whole copies of its models, and in the first
    set whole generation engines.

    Args:
        sets: of `role_sets`.
        copies: devices that hold the model of each of their roles once.
        engine_tensor: ranks of a generation engine, where that is decided.
    """
    first, *others = (lcm(*(copies[role] for role in roles)) for roles in sets)
    return (lcm(first, engine_tensor or 1), *others)


def place_sets(
    problem: PlanningProblem, sets: RoleSets, multiples: Sequence[int]
) -> Mapping[str, Mesh]:
    """The ranks of each role, cut along `data` only: a pool for each set, or consecutive devices of
    the only pool in proportion to the sets' work.

    Args:
        problem: what is planned.
        sets: of `role_sets`.
        multiples: what the devices of each set in a common pool are a multiple of.

    Raises:
        InvalidPlacement: a number of devices that cannot be shared out so, or another number of
            pools than of sets.
    """
    pools = problem.pools
    listed = "; ".join(", ".join(each) for each in sets)
    if len(pools) == len(sets):
        meshes = [Mesh(pool=pool.name, data=pool.num_devices) for pool in pools]
    elif len(pools) == 1:
        (pool,) = pools
        works = [sum(_work(problem.models[name]) for name in each) for each in sets]
        counts = share_devices(pool.num_devices, works, multiples)
        if counts is None:
            raise InvalidPlacement(_cannot_share(pool.num_devices, sets, multiples, listed))
        starts = [sum(counts[:number]) for number in range(len(counts))]
        meshes = [
            Mesh(pool=pool.name, first_rank=start, data=count)
            for start, count in zip(starts, counts, strict=True)
        ]
    else:
        raise InvalidPlacement(
            f"other pools than sets of roles: got {len(pools)} pools for {len(sets)} sets "
            f"({listed}), allowed one pool, or one for each set; change resources.nodePools, or "
            "write type: Manual with the roles of each pool"
        )
    return {name: mesh for each, mesh in zip(sets, meshes, strict=True) for name in each}


def _cannot_share(num_devices: int, sets: RoleSets, multiples: Sequence[int], listed: str) -> str:
    """Why the devices of a pool cannot be shared out."""
    least = sum(multiples)
    if least == len(sets):
        return (
            f"fewer devices than sets of roles: got {num_devices} for {len(sets)} ({listed}), "
            f"allowed at least {len(sets)}; add devices (--devices {len(sets)} on one machine), or "
            "write type: Colocated"
        )
    terms = [f"{size} ({', '.join(each)})" for size, each in zip(multiples, sets, strict=True)]
    # Every set's number added to a sum is one, so one is above within the first of them.
    can = _sums(max(0, num_devices - least) + multiples[0], multiples)
    sums = [least + more for more, is_sum in enumerate(can) if is_sum]
    nearest = [n for n in sums if n < num_devices][-1:] + [n for n in sums if n > num_devices][:1]
    return (
        f"devices that sets of roles cannot share: got {num_devices}, allowed sums of multiples of "
        f"{' and '.join(terms)}, such as {' or '.join(map(str, nearest))}; take such a number, or "
        "change training.parallelism or rollout.parallelism.tensor"
    )


def _work(facts: ModelFacts) -> int:
    """Parameters x passes over them for each token, forward passes."""
    return facts.num_parameters * (1 + TRAINING_PASSES * facts.is_trained)


def share_devices(
    num_devices: int, works: Sequence[int], multiples: Sequence[int]
) -> list[int] | None:
    """Devices of each set: multiples of its number, as near as can be to one and of the rest as
    many as its work is of all. Together they are all devices. None: that cannot be.

    Args:
        num_devices: to share out.
        works: of the sets.
        multiples: a number for each set.
    """
    rest = num_devices - len(works)
    due = [1 + rest * work / sum(works) for work in works]
    counts = [
        max(multiple, int(each) // multiple * multiple)
        for each, multiple in zip(due, multiples, strict=True)
    ]
    can = _sums(max(0, num_devices), multiples)

    def lacks(number: int) -> tuple[float, int]:
        return (due[number] - counts[number], -number)

    while (left := num_devices - sum(counts)) < 0 or not can[left]:
        larger = [n for n, count in enumerate(counts) if count > multiples[n]]
        if not larger:
            return None
        least = min(larger, key=lacks)
        counts[least] -= multiples[least]
    while left := num_devices - sum(counts):
        fitting = [n for n, size in enumerate(multiples) if size <= left and can[left - size]]
        most = max(fitting, key=lacks)
        counts[most] += multiples[most]
    return counts


def _sums(largest: int, sizes: Sequence[int]) -> list[bool]:
    """Whether each number from 0 on is a sum of such sizes, each as often as need be."""
    can = [True] + [False] * largest
    for size in sizes:
        for number in range(size, largest + 1):
            can[number] |= can[number - size]
    return can


def _what_is_apart(kind: PlacementType) -> str:
    if kind is PlacementType.SPLIT:
        return "language models and scalar models, such as a critic"
    return "several roles with a model"
