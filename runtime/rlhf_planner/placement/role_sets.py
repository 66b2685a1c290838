"""The placements Split and Standalone: sets of roles, and the number of devices of each set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.spec.placement import PlacementType
from rlhf_flow.errors import InvalidPlacement
from rlhf_planner.problem.problem import PlanningProblem, RoleSpec

# Roles that share devices; the set with the policy comes first.
RoleSets = tuple[tuple[str, ...], ...]

# Passes of training, besides one of inference or generation: a forward pass, and a backward pass
# that counts twice.
TRAINING_PASSES = 3


def role_sets(kind: PlacementType, heads: Mapping[str, ModelHead], policy: str) -> RoleSets:
    """Partition the roles with a model into sets with devices of their own.

    Args:
        kind: Split or Standalone.
        heads: of all roles with a model.
        policy: the role that the job trains.

    Raises:
        InvalidPlacement: there is only one set.
    """
    # The sort is stable: the policy comes first, the others keep their order.
    with_model = sorted(heads, key=lambda name: name != policy)
    if kind is PlacementType.STANDALONE:
        sets: RoleSets = tuple((name,) for name in with_model)
    else:
        same_head = [name for name in with_model if heads[name] is heads[policy]]
        others = [name for name in with_model if name not in same_head]
        sets = tuple(tuple(half) for half in (same_head, others) if half)
    if len(sets) == 1:
        raise InvalidPlacement(
            f"placement {kind.value} has nothing to place apart: got {', '.join(with_model)}, "
            f"allowed {_missing_roles(kind)}; write type: Colocated, or add such a role"
        )
    return sets


def set_multiples(
    sets: RoleSets, copies: Mapping[str, int], engine_tensor: int | None
) -> tuple[int, ...]:
    """The numbers that the devices of each set must be multiples of: full copies of its models, and
    in the first set full generation engines.

    Args:
        sets: of `role_sets`.
        copies: devices for one copy of the model of each role.
        engine_tensor: ranks of a generation engine, if fixed.
    """
    first, *rest = (lcm(*(copies[role] for role in roles)) for roles in sets)
    return (lcm(first, engine_tensor or 1), *rest)


def set_meshes(
    problem: PlanningProblem, sets: RoleSets, multiples: Sequence[int]
) -> Mapping[str, Mesh]:
    """The ranks of each role, cut along `data` only: a pool per set, or consecutive devices of the
    only pool in proportion to the sets' work.

    Args:
        sets: of `role_sets`.
        multiples: required multiples of the devices of each set in a common pool.

    Raises:
        InvalidPlacement: the devices cannot be shared out so, or pools and sets differ in number.
    """
    pools = problem.pools
    listed = "; ".join(", ".join(set) for set in sets)
    if len(pools) == len(sets):
        meshes = [Mesh(pool=pool.name, data=pool.num_devices) for pool in pools]
    elif len(pools) == 1:
        (pool,) = pools
        works = [sum(_work(problem.models[name]) for name in set) for set in sets]
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
    return {name: mesh for roles, mesh in zip(sets, meshes, strict=True) for name in roles}


def _cannot_share(num_devices: int, sets: RoleSets, multiples: Sequence[int], listed: str) -> str:
    """The refusal of a number of devices that the sets cannot share."""
    min_devices = sum(multiples)
    if min_devices == len(sets):
        return (
            f"fewer devices than sets of roles: got {num_devices} for {len(sets)} ({listed}), "
            f"allowed at least {len(sets)}; add devices (--devices {len(sets)} on one machine), or "
            "write type: Colocated"
        )
    terms = [f"{size} ({', '.join(roles)})" for size, roles in zip(multiples, sets, strict=True)]
    # A possible sum plus a multiple is possible, too. So the next larger one is at most the first
    # multiple away.
    is_sum_ = _sums(max(0, num_devices - min_devices) + multiples[0], multiples)
    sums = [min_devices + more for more, possible in enumerate(is_sum_) if possible]
    nearest = [n for n in sums if n < num_devices][-1:] + [n for n in sums if n > num_devices][:1]
    return (
        f"devices that sets of roles cannot share: got {num_devices}, allowed sums of multiples of "
        f"{' and '.join(terms)}, such as {' or '.join(map(str, nearest))}; take such a number, or "
        "change training.parallelism or rollout.parallelism.tensor"
    )


def _work(facts: RoleSpec) -> int:
    """Work per token: parameters x passes, in forward passes."""
    return facts.num_parameters * (1 + TRAINING_PASSES * facts.is_trained)


def share_devices(
    num_devices: int, works: Sequence[int], multiples: Sequence[int]
) -> list[int] | None:
    """Devices per set, in proportion to its work, rounded to its required multiple; the sum is
    `num_devices`. None: there is no such sum.

    Each set is due one device plus its share of the rest. Its count is rounded down first. Then the
    set farthest above its due loses a multiple, or the set farthest below gains one, until the sum
    is right.

    Args:
        num_devices: to share out.
        works: of the sets.
        multiples: required multiple of each set.
    """
    remaining = num_devices - len(works)
    due = [1 + remaining * work / sum(works) for work in works]
    # A set has at least its multiple: none may end without devices.
    counts = [
        max(multiple, int(due_devices) // multiple * multiple)
        for due_devices, multiple in zip(due, multiples, strict=True)
    ]
    # A greedy choice could end with devices left that no multiple fills, so each step keeps the
    # rest a possible sum.
    can = _sums(max(0, num_devices), multiples)

    def lacks(number: int) -> tuple[float, int]:
        # Of equal sets the first gains a multiple, and the last loses one.
        return (due[number] - counts[number], -number)

    while (left := num_devices - sum(counts)) < 0 or not can[left]:
        larger = [n for n, count in enumerate(counts) if count > multiples[n]]
        if not larger:
            return None
        farthest_above = min(larger, key=lacks)
        counts[farthest_above] -= multiples[farthest_above]
    while left := num_devices - sum(counts):
        fitting = [n for n, size in enumerate(multiples) if size <= left and can[left - size]]
        farthest_below = max(fitting, key=lacks)
        counts[farthest_below] += multiples[farthest_below]
    return counts


def _sums(largest: int, sizes: Sequence[int]) -> list[bool]:
    """True at each number, from 0 on, that is a sum of such sizes; a size may repeat."""
    can = [True] + [False] * largest
    for size in sizes:
        for number in range(size, largest + 1):
            can[number] |= can[number - size]
    return can


def _missing_roles(kind: PlacementType) -> str:
    if kind is PlacementType.SPLIT:
        return "language models and scalar models, such as a critic"
    return "several roles with a model"
