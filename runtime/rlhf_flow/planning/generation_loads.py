"""What a job asks of the generation engines of its roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Pool
from rlhf_flow.planning.generation_memory import GenerationCall, GenerationLoad
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.placement import RolePlace
from rlhf_flow.planning.problem import PlanningProblem

Loads = Mapping[str, GenerationLoad]
"""What each role that generates asks of its engines."""


def generation_loads(
    problem: PlanningProblem,
    pool: Pool,
    models: Sequence[RoleModel],
    places: Mapping[str, RolePlace],
) -> Loads:
    """What the job asks of the engines of each role that generates on a pool.

    Args:
        problem: what is planned.
        pool: the devices.
        models: of all roles.
        places: where they are.
    """
    return {
        model.role: generation_load(problem, pool, model, places[model.role])
        for model in models
        if model.generates and model.mesh.pool == pool.name
    }


def generation_load(
    problem: PlanningProblem, pool: Pool, model: RoleModel, where: RolePlace
) -> GenerationLoad:
    """What the job asks of the engines of one role; arguments as above."""
    workload, place = problem.workload, where.generation
    return GenerationLoad(
        shape=model.shape,
        mesh=model.mesh,
        device=pool.device,
        number_bytes=model.compute_bytes,
        max_prompt_tokens=workload.max_prompt_tokens,
        max_response_tokens=workload.max_response_tokens,
        max_concurrent_sequences=workload.max_concurrent_sequences,
        calls=_calls_of(problem, model.role),
        engine=model.engine,
        elsewhere=None if place.mesh.ranks == model.mesh.ranks else place.mesh,
        tensor=place.tensor or problem.fixed.engine_tensor,
        tensor_field=f"{place.field}.tensor" if place.tensor else "rollout.parallelism.tensor",
        is_chosen=place.is_chosen and problem.fixed.engine_tensor is None,
    )


def _calls_of(problem: PlanningProblem, role: str) -> tuple[GenerationCall, ...]:
    """The calls of a role that generate, as far as it is known of how many prompts they are: of
    held-out ones only where their number has a limit."""
    prompts = {
        GraphName.STEP: problem.workload.prompts_per_step,
        GraphName.EVALUATION: problem.workload.held_out_prompts,
    }
    return tuple(
        GenerationCall(count, graph.rows[call.id].maximum)
        for name, graph in problem.graphs.items()
        for call in graph.calls_of_kind(CallKind.GENERATE)
        if call.role == role and (count := prompts.get(name)) is not None
    )
