"""A plan by a rule, with what it takes. Pure.

One cut for several roles, the smallest first. Pure.

Source: the usual advice for Megatron: tensor parallelism within a node first, then pipeline stages,
the rest replicas (Narayanan et al., arXiv 2104.04473, section 3).

Placements that follow from what roles are: all roles on all devices, language models apart from
scalar ones, or every role apart, each cut in the fewest parts that fit, tensor ranks before stages,
with the smallest engines that fit. Pure.

Source: the usual advice for Megatron: tensor parallelism within a node first, then pipeline stages,
the rest replicas (Narayanan et al., arXiv 2104.04473, section 3).

One parallelism for everything, as for pretraining: all roles on all devices, all calls with the
same tensor ranks, stages and replicas. Pure.

    tensor   as few ranks of a node as fit
    stages   with as many tensor ranks as there can be, as few as fit
    data     the rest

Source: the baseline of ReaL (arXiv 2406.14088), section 8, which takes it from Megatron-LM's advice
for pretraining. Engines have no stages here, see symmetric_cuts.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from rlhf_api.errors import ManifestError
from rlhf_api.plan import Mesh, Pool
from rlhf_api.plan_estimate import Alternative
from rlhf_api.spec.placement import PlacementSpec
from rlhf_flow.errors import DoesNotFit, PlanError
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import evaluate
from rlhf_planner.feasibility import (
    FittedJob,
    PlacedJob,
    first_that_fits,
    first_way_that_fits,
    fit_job,
    place_job,
)
from rlhf_planner.memory.choices import memory_choices
from rlhf_planner.placement.placement import CallPlace, RolePlace
from rlhf_planner.plan_builder import fitted_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.strategies.parallelism import Cut, cut_place, cuts, engine_tensors, possible_cuts
from rlhf_planner.strategies.placements import Placement


@dataclass(frozen=True)
class Baseline:
    """A plan by a rule."""

    alternative: Alternative
    """For people."""
    fitted: FittedJob | None
    """None: it does not fit."""


def judged(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    name: str,
    fitted: FittedJob | None,
) -> Baseline:
    """A plan by a rule, with the time of its steps and the memory of its fullest device.

    Args:
        problem: what is planned.
        hardware: of the devices of each pool.
        name: of the rule, for people.
        fitted: what it chose. None: it does not fit.

    Raises:
        PlanError: the profile lacks what the plan does.
    """
    if fitted is None:
        return Baseline(Alternative(name=name, step_seconds=None), None)
    plan = fitted_plan(fitted)
    seconds = evaluate(problem, plan, hardware).step_seconds
    fullest = plan.fullest.peak_bytes
    return Baseline(Alternative(name=name, step_seconds=seconds, fullest_bytes=fullest), fitted)


def fits(placed: PlacedJob) -> bool:
    """Whether a placed job fits with the way to compute that takes least memory."""
    *_, last = memory_choices(placed.problem, placed.groups)
    try:
        fit_job(placed, last)
    except PlanError:
        return False
    return True


def fitted_placement(problem: PlanningProblem, placement: Placement) -> FittedJob | None:
    """A placement with cuts and sizes of engines, computed in the first way that fits. None: it
    does not fit.

    Args:
        problem: what is planned.
        placement: where roles are, with models cut and engines sized.

    Raises:
        PlanError, ManifestError: no runtime executes it.
    """
    placed = place_job(problem, placement)
    return first_way_that_fits(placed) if fits(placed) else None


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


def simple_placement(problem: PlanningProblem, placement: PlacementSpec) -> FittedJob | None:
    """The first plan with a placement that fits, models cut in ever more parts. None: none does.

    Args:
        problem: what is planned.
        placement: where roles are.

    Raises:
        PlanError, ManifestError: another reason than too little memory, for all cuts.
    """
    placed = replace(problem, fixed=replace(problem.fixed, placement=placement))
    fitted = _smallest_cut(placed)
    if fitted is None:
        return None
    return replace(fitted, placed=replace(fitted.placed, problem=problem, is_chosen=True))


def _smallest_cut(problem: PlanningProblem) -> FittedJob | None:
    refusals: list[PlanError | ManifestError] = []
    for made in _cut_problems(problem):
        try:
            return first_that_fits(made)
        except DoesNotFit:
            refusals.clear()
        except (PlanError, ManifestError) as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
    return None


def _cut_problems(problem: PlanningProblem) -> Iterator[PlanningProblem]:
    free = {
        role: facts
        for role, facts in problem.models.items()
        if facts.uses_megatron and (facts.fixed.tensor is None or facts.fixed.pipeline is None)
    }
    if not free:
        yield problem
        return
    for tensor, pipeline in possible_cuts(problem.pools, [each.shape for each in free.values()]):
        cut = {
            role: replace(
                facts,
                fixed=replace(
                    facts.fixed,
                    tensor=facts.fixed.tensor or tensor,
                    pipeline=facts.fixed.pipeline or pipeline,
                ),
            )
            for role, facts in free.items()
        }
        yield replace(problem, models={**problem.models, **cut})


def megatron_heuristic(problem: PlanningProblem) -> FittedJob | None:
    """The plan with the smallest common cut that fits. None: none does.

    Args:
        problem: what is planned, on one pool.

    Raises:
        PlanError, ManifestError: roles that no runtime has on the same devices.
    """
    (pool,) = problem.pools
    everywhere = Mesh(pool=pool.name, data=pool.num_devices)
    placements = symmetric_placements(problem, problem.models, everywhere)
    found = (fitted_placement(problem, placement) for _, placement in placements)
    return next((fitted for fitted in found if fitted is not None), None)
