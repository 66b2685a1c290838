"""Refusals of placements and models that this version does not run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_api.plan_text import describe_devices
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import NotOffered
from rlhf_planner.placement.strategy import EngineStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem


def check_offered(problem: PlanningProblem, engines: Mapping[str, EngineStrategy]) -> None:
    """Refuse steps that no runtime runs yet.

    Args:
        engines: of each role that generates.

    Raises:
        NotOffered: with the call, and what to write instead.
    """
    by_name = {pool.name: pool for pool in problem.pools}
    for (first, one), (second, other) in combinations(engines.items(), 2):
        check_engines(first, one, second, other, by_name[one.devices.pool])


def check_engines(
    first: str, one: EngineStrategy, second: str, other: EngineStrategy, pool: Pool
) -> None:
    """Refuse two roles whose engines would share processes that cannot have both."""
    here, there = one.devices, other.devices
    if not here.overlaps(there):
        return
    # vLLM keeps one set of groups in a process, and a second engine uses the same one. So it must
    # be on the same ranks, and of the same size.
    if pool.device is Device.GPU:
        raise NotOffered(
            "several roles that generate on the same GPUs are not offered yet, where an engine "
            f"that gives its memory back is alone in its process: got {first}, {second}, allowed "
            "one; generate with one of them, or separate them with placement.groups"
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


# Head sizes for which vLLM's CPU build has an attention kernel; on others its first token fails. On
# GPUs one of its backends takes every size. Source: vLLM 0.32, v1/attention/backends/cpu_attn.py
# (which leaves 48 out, for which there is a kernel) and platforms/cuda.py.
CPU_HEAD_SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def check_served(problem: PlanningProblem) -> None:
    """Refuse a role that generates with a model for which the engine has no kernel.

    Raises:
        NotOffered: with the supported sizes.
    """
    if problem.device is not Device.CPU:
        return
    for role, facts in problem.models.items():
        if facts.generates and facts.shape.head_dim not in CPU_HEAD_SIZES:
            raise NotOffered(
                f"{role} generates with a model whose attention vLLM cannot compute on CPUs: got "
                f"heads of {facts.shape.head_dim}, allowed "
                f"{', '.join(map(str, CPU_HEAD_SIZES))}; choose a model with such heads "
                "(head_dim in its config.json), or generate on GPUs"
            ).at("spec", "models", role, "source")


def check_copies(problem: PlanningProblem, roles: Mapping[str, RoleStrategy]) -> None:
    """Refuse copies of weights between models that differ, or that are on other devices.

    Args:
        roles: every role with a model.

    Raises:
        NotOffered: with the call, and what to change.
    """
    calls = [
        call for graph in problem.graphs.values() for call in graph.calls_of_kind(CallKind.COPY)
    ]
    for call in calls:
        target, source = call.role, call.copied_role
        assert target is not None and source is not None
        one, other = problem.models[source].shape, problem.models[target].shape
        if one != other:
            raise NotOffered(
                f"{call.id} cannot copy between models of other shapes: got {one} of "
                f"{source} and {other} of {target}, allowed the same; let "
                f"models.{target}.source be {{sameAs: {source}}}"
            )
        _check_meshes(call.id, source, roles[source].devices, target, roles[target].devices)


def _check_meshes(call: str, source: str, one: Mesh, target: str, other: Mesh) -> None:
    if (one.pool, one.ranks) != (other.pool, other.ranks):
        raise NotOffered(
            f"{call} cannot copy between other devices yet: got {source} on "
            f"{describe_devices(one.ranks, one.pool)} and {target} on "
            f"{describe_devices(other.ranks, other.pool)}, allowed the same for both; put "
            "them into one group of placement.groups"
        )
