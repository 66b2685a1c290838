"""One cut for several roles, the smallest first. Pure.

Source: the usual advice for Megatron: tensor parallelism within a node first, then pipeline stages,
the rest replicas (Narayanan et al., arXiv 2104.04473, section 3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rlhf_api.plan import Mesh, Pool
from rlhf_flow.planning.placement import CallPlace, RolePlace
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.layouts import Cut, cut_place, cuts, engine_tensors
from rlhf_flow.planning.search.placements import Placement


def symmetric_placements(
    problem: PlanningProblem, roles: Collection[str], mesh: Mesh
) -> Iterator[tuple[Cut, Placement]]:
    """Roles on the same devices with the same cut, in generation, too: first more and more tensor
    ranks, then with as many of these as there can be more and more stages.

    FSDP's roles are not cut, and roles with a cut of their own in the manifest keep it. Engines
    have no stages here: they have as many ranks as there are tensor ranks, or the most below that
    that they can have. Where nothing may be cut the engines alone grow.

    Args:
        problem: what is planned.
        roles: that are there.
        mesh: their devices, cut along `data` only.
    """
    pool = next(pool for pool in problem.pools if pool.name == mesh.pool)
    place = CallPlace(mesh)
    legal = {role: cuts(problem.models[role], place, pool) for role in roles}
    sizes = {
        role: engine_tensors(problem, problem.models[role], place, pool)
        for role in roles
        if problem.models[role].generates
    }
    if not all(legal.values()) or not all(sizes.values()):
        return
    for cut in _cuts(pool, list(legal.values()), list(sizes.values())):
        yield (
            cut,
            {
                role: RolePlace(
                    training := cut_place(place, cut if cut in of_role else of_role[0]),
                    CallPlace(mesh, _nearest(cut.tensor, sizes[role]), is_chosen=True)
                    if role in sizes
                    else training,
                )
                for role, of_role in legal.items()
            },
        )


def _cuts(pool: Pool, legal: list[tuple[Cut, ...]], sizes: list[tuple[int, ...]]) -> list[Cut]:
    """Of the cuts that all roles may have which leave the choice: those in the rule's order."""
    free = [set(of_role) for of_role in legal if len(of_role) > 1]
    if not free:
        grown = sorted({size for of_role in sizes for size in of_role}) or [1]
        return [Cut(size, 1) for size in grown]
    common = set.intersection(*free)
    within = sorted(cut for cut in common if cut.pipeline == 1)
    most = max((cut.tensor for cut in within), default=1)
    across = sorted(cut for cut in common if cut.pipeline > 1 and cut.tensor == most)
    return [*within, *across]


def _nearest(wanted: int, sizes: tuple[int, ...]) -> int:
    return max((size for size in sizes if size <= wanted), default=min(sizes))
