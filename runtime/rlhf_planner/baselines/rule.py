"""The simplest rules, and the parts that all rules share. Pure.

- Placements by roles: all roles on all devices, language models separate from scalar ones, or every
  role by itself. Models are cut in the fewest parts that fit, tensor ranks before stages, with the
  smallest engines that fit. Source: the usual advice for Megatron (Narayanan et al., arXiv
  2104.04473, section 3): tensor parallelism within a node, then pipeline stages, the rest replicas.
- Megatron heuristic: all roles on all devices, and all calls with the same tensor ranks, stages and
  replicas, as for pretraining. Tensor ranks are as few of a node as fit. With the most of them,
  stages are as few as fit. The rest is replicas. Source: the baseline of ReaL (arXiv 2406.14088),
  section 8, which takes it from Megatron-LM's advice for pretraining.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_api.plan_estimate import Alternative
from rlhf_api.spec.placement import PlacementSpec
from rlhf_flow.errors import DoesNotFit, PlanError
from rlhf_planner.candidates.completions import cuts, engine_tensors, possible_cuts
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import evaluate
from rlhf_planner.feasibility import (
    FeasibleJob,
    PlacedJob,
    apply_placement,
    check_feasible,
    first_feasible,
    first_feasible_choice,
)
from rlhf_planner.memory.choices import memory_choices
from rlhf_planner.placement.strategy import Cut, EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem


@dataclass(frozen=True)
class Baseline:
    """A plan by a rule."""

    alternative: Alternative
    """The plan's times, for people."""
    job: FeasibleJob | None
    """The feasible job. None: it does not fit."""


def evaluated_baseline(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    name: str,
    job: FeasibleJob | None,
) -> Baseline:
    """Evaluate a rule's job: the time of its steps and the memory of its fullest device.

    Args:
        hardware: of the devices of each pool.
        name: of the rule, for people.
        job: the rule's choice. None: it does not fit.

    Raises:
        PlanError: the profile lacks what the plan does.
    """
    if job is None:
        return Baseline(Alternative(name=name, step_seconds=None), None)
    plan = build_plan(job)
    seconds = evaluate(problem, plan, hardware).step_seconds
    fullest = plan.fullest.peak_bytes
    return Baseline(Alternative(name=name, step_seconds=seconds, fullest_bytes=fullest), job)


def fits(placed: PlacedJob) -> bool:
    """True if a placed job fits with the memory choice that needs the least memory."""
    # The last choice needs the least memory; if it does not fit, none does.
    *_, last = memory_choices(placed.problem, placed.strategy.roles, placed.groups)
    try:
        check_feasible(placed, last)
    except PlanError:
        return False
    return True


def feasible_placement(problem: PlanningProblem, placement: JobStrategy) -> FeasibleJob | None:
    """The first feasible job of a placement. None: it does not fit.

    Args:
        placement: the devices of each role, with models cut and engines sized.

    Raises:
        PlanError, ManifestError: no runtime executes it.
    """
    placed = apply_placement(problem, placement)
    return first_feasible_choice(placed) if fits(placed) else None


def symmetric_placements(
    problem: PlanningProblem, roles: Collection[str], mesh: Mesh
) -> Iterator[tuple[Cut, JobStrategy]]:
    """Roles on the same devices with the same cut, also in generation: first with ever more tensor
    ranks, then with the most tensor ranks and ever more stages.

    FSDP's roles are not cut, and roles with a fixed cut keep it.

    Args:
        mesh: the roles' devices, cut along `data` only.
    """
    pool = next(pool for pool in problem.pools if pool.name == mesh.pool)
    devices = RoleStrategy(mesh)
    allowed = {role: cuts(problem, role, devices) for role in roles}
    sizes = {
        role: engine_tensors(problem, role, mesh)
        for role in roles
        if problem.models[role].generates
    }
    if not all(allowed.values()) or not all(sizes.values()):
        return
    # Engines have no stages: they get the largest possible size up to the tensor ranks.
    for cut in _cuts(pool, list(allowed.values()), list(sizes.values())):
        yield (
            cut,
            JobStrategy(
                {
                    role: devices.with_cut(cut if cut in role_cuts else role_cuts[0])
                    for role, role_cuts in allowed.items()
                },
                {
                    role: EngineStrategy(mesh, _nearest(cut.tensor, of_role))
                    for role, of_role in sizes.items()
                },
            ),
        )


def _cuts(pool: Pool, allowed: list[tuple[Cut, ...]], sizes: list[tuple[int, ...]]) -> list[Cut]:
    """The cuts that all roles with a choice have in common, in the rule's order."""
    free = [set(cuts_of_role) for cuts_of_role in allowed if len(cuts_of_role) > 1]
    if not free:
        # No role may be cut, so only engines grow.
        grown = sorted({size for sizes_of_role in sizes for size in sizes_of_role}) or [1]
        return [Cut(size, 1) for size in grown]
    common = set.intersection(*free)
    within = sorted(cut for cut in common if cut.pipeline == 1)
    # Stages come after tensor ranks: they are tried with the most tensor ranks only.
    max_tensor = max((cut.tensor for cut in within), default=1)
    across = sorted(cut for cut in common if cut.pipeline > 1 and cut.tensor == max_tensor)
    return [*within, *across]


def _nearest(target: int, sizes: tuple[int, ...]) -> int:
    return max((size for size in sizes if size <= target), default=min(sizes))


def simple_placement(problem: PlanningProblem, placement: PlacementSpec) -> FeasibleJob | None:
    """The first feasible job of a placement, with models cut in ever more parts. None: none fits.

    Args:
        placement: the manifest's, or another one.

    Raises:
        PlanError, ManifestError: another reason than too little memory, for all cuts.
    """
    placed_problem = replace(problem, fixed=replace(problem.fixed, placement=placement))
    job = _smallest_cut(placed_problem)
    if job is None:
        return None
    # Placement and cut are the rule's choice: the job gets back the problem that leaves them open.
    return replace(job, placed=replace(job.placed, problem=problem, is_chosen=True))


def _smallest_cut(problem: PlanningProblem) -> FeasibleJob | None:
    refusals: list[PlanError | ManifestError] = []
    # Cuts come with ever more parts, so the first that fits is the smallest.
    for candidate in _cut_problems(problem):
        try:
            return first_feasible(candidate)
        except DoesNotFit:
            # A cut was possible but too small: the refusals of others do not matter.
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
    for tensor, pipeline in possible_cuts(problem.pools, [spec.shape for spec in free.values()]):
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


def megatron_heuristic(problem: PlanningProblem) -> FeasibleJob | None:
    """The job with the smallest common cut that fits. None: none fits.

    Args:
        problem: the planning problem, on one pool.

    Raises:
        PlanError, ManifestError: roles that no runtime has on the same devices.
    """
    (pool,) = problem.pools
    everywhere = Mesh(pool=pool.name, data=pool.num_devices)
    placements = symmetric_placements(problem, problem.models, everywhere)
    jobs = (feasible_placement(problem, placement) for _, placement in placements)
    return next((job for job in jobs if job is not None), None)
