"""Roles and generation engines of a plan, as the time model takes them."""

from __future__ import annotations

from rlhf_api.plan import GenerationPlan, Plan
from rlhf_flow.planning.generation_memory import GenerationLoad
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.role_models import role_model


def planned_models(problem: PlanningProblem, plan: Plan) -> dict[str, RoleModel]:
    """Every role with a model, on the ranks and with the settings of a plan."""
    return {
        each.role: role_model(
            problem,
            problem.models[each.role],
            each.mesh,
            each.micro_batch_tokens,
            each.recomputes,
        )
        for each in plan.roles
        if each.mesh is not None and each.micro_batch_tokens is not None
    }


def planned_load(
    problem: PlanningProblem, model: RoleModel, generation: GenerationPlan
) -> GenerationLoad:
    """What is asked of a role's engines.

    Args:
        problem: what was planned.
        model: the role.
        generation: its engines.
    """
    is_elsewhere = generation.mesh.ranks != model.mesh.ranks
    return GenerationLoad(
        shape=model.shape,
        mesh=model.mesh,
        device=model.device,
        number_bytes=model.compute_bytes,
        max_prompt_tokens=problem.workload.max_prompt_tokens,
        max_response_tokens=problem.workload.max_response_tokens,
        max_concurrent_sequences=generation.max_concurrent_sequences,
        engine=model.engine,
        elsewhere=generation.mesh if is_elsewhere else None,
    )
