"""Placements that follow from what roles are: which are placed apart, and on how many devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.plan import Head, Mesh
from rlhf_api.spec.placement import PlacementType
from rlhf_flow.errors import InvalidPlacement
from rlhf_flow.job_graphs import JobRole
from rlhf_flow.planning.inventory import DeviceInventory
from rlhf_flow.planning.shapes import DecoderShape

RoleSets = tuple[tuple[str, ...], ...]
"""Roles that share devices, that with the policy first."""

TRAINING_PASSES = 3
"""Of a trained role, beside the one of inference or generation: a backward pass takes two."""


def role_sets(kind: PlacementType, roles: Mapping[str, JobRole], policy: str) -> RoleSets:
    """The sets of roles with a model that a placement puts on devices of their own.

    Args:
        kind: Split or Standalone.
        roles: all of the job's.
        policy: the role that stands for the job.

    Raises:
        InvalidPlacement: there is one set only.
    """
    with_model = sorted(
        (name for name, role in roles.items() if role.head is not None),
        key=lambda name: name != policy,
    )
    if kind is PlacementType.STANDALONE:
        sets: RoleSets = tuple((name,) for name in with_model)
    else:
        like = [name for name in with_model if roles[name].head is roles[policy].head]
        others = [name for name in with_model if name not in like]
        sets = tuple(tuple(half) for half in (like, others) if half)
    if len(sets) == 1:
        raise InvalidPlacement(
            f"placement {kind.value} has nothing to place apart: got {', '.join(with_model)}, "
            f"allowed {_what_is_apart(kind)}; write type: Colocated, or add such a role"
        )
    return sets


def place_sets(
    sets: RoleSets,
    roles: Mapping[str, JobRole],
    shapes: Mapping[str, DecoderShape],
    pools: Sequence[DeviceInventory],
    tensor: int | None = None,
) -> Mapping[str, Mesh]:
    """The ranks of each role: a pool for each set, or consecutive devices of the only pool in
    proportion to the sets' work, at least one.

    Args:
        sets: of `role_sets`.
        roles: all of the job's.
        shapes: of every role with a model.
        pools: all devices.
        tensor: ranks of a generation engine; the first set has a multiple of them. None: any.

    Raises:
        InvalidPlacement: too few devices, or another number of pools than of sets.
    """
    listed = "; ".join(", ".join(each) for each in sets)
    if len(pools) == len(sets):
        meshes = [Mesh(pool=pool.pool, data=pool.num_devices) for pool in pools]
    elif len(pools) == 1:
        (pool,) = pools
        if pool.num_devices < len(sets):
            raise InvalidPlacement(
                f"fewer devices than sets of roles: got {pool.num_devices} for {len(sets)} "
                f"({listed}), allowed at least {len(sets)}; add devices (--devices {len(sets)} on "
                "one machine), or write type: Colocated"
            )
        works = [sum(_work(roles[name], shapes[name]) for name in each) for each in sets]
        counts = _shares(pool.num_devices, works, tensor or 1)
        starts = [sum(counts[:number]) for number in range(len(counts))]
        meshes = [
            Mesh(pool=pool.pool, first_rank=start, data=count)
            for start, count in zip(starts, counts, strict=True)
        ]
    else:
        raise InvalidPlacement(
            f"other pools than sets of roles: got {len(pools)} pools for {len(sets)} sets "
            f"({listed}), allowed one pool, or one for each set; change resources.nodePools, or "
            "write type: Groups with the roles of each pool"
        )
    return {name: mesh for each, mesh in zip(sets, meshes, strict=True) for name in each}


def _work(role: JobRole, shape: DecoderShape) -> int:
    """Parameters x passes over them for each token, forward passes."""
    scalar = role.head is Head.SCALAR
    size = shape.num_critic_parameters if scalar else shape.num_parameters
    return size * (1 + TRAINING_PASSES * role.is_trained)


def _shares(num_devices: int, works: Sequence[int], multiple: int) -> list[int]:
    """Devices of each set: one, and of the rest as many as its work is of all; what is left over
    goes to those with the largest remainders. The first has a multiple of `multiple`, where there
    are as many and one for each other."""
    rest = num_devices - len(works)
    exact = [rest * work / sum(works) for work in works]
    counts = [1 + int(each) for each in exact]
    by_remainder = sorted(range(len(works)), key=lambda n: (int(exact[n]) - exact[n], n))
    for number in by_remainder[: num_devices - sum(counts)]:
        counts[number] += 1
    wanted = max(multiple, counts[0] // multiple * multiple)
    if num_devices - wanted >= len(works) - 1:
        while counts[0] != wanted:
            step = 1 if counts[0] > wanted else -1
            # From the first to the one that has least of what is due, or back from who has most.
            other = max(range(1, len(works)), key=lambda n: step * (exact[n] - counts[n]))
            if counts[other] + step < 1:
                other = max(range(1, len(works)), key=lambda n: counts[n])
            counts[0], counts[other] = counts[0] - step, counts[other] + step
    return counts


def _what_is_apart(kind: PlacementType) -> str:
    if kind is PlacementType.SPLIT:
        return "language models and scalar models, such as a critic"
    return "several roles with a model"
