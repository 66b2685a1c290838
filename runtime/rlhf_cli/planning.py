"""Trace and plan a job, with the checks that only the runtime can make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rlhf_api.plan import GraphName, Plan, Pool
    from rlhf_api.spec.job import RLHFJob
    from rlhf_flow.trace.graph import Graph
    from rlhf_planner.problem.profile import Profile

PLANNED_FROM_MANIFEST = (
    "the algorithm's code is not on this machine: the plan is made from the graph in the manifest, "
    "which the driver compares with the code"
)
"""Warning about a plan that was made without the algorithm's code."""


def trace_and_plan(
    job: RLHFJob, pools: Sequence[Pool], prove: bool = False, profile: Profile | None = None
) -> tuple[Mapping[GraphName, Graph], Plan]:
    """Trace a job and plan it.

    Args:
        job: the manifest.
        pools: its devices.
        prove: search until the plan is proved fastest.
        profile: measured times of such devices, if available.

    Raises:
        FlowError: the algorithm cannot be traced.
        ManifestError: the rewards do not fit the roles.
        PlanError: the job cannot be planned on these devices.
        UserCodeFailed: a custom protocol does not cover the rows on these devices.
    """
    from rlhf_flow.document.manifest_graph import lacks_code
    from rlhf_flow.jobs.job_graphs import graphs_without_code, trace_job
    from rlhf_planner.problem.devices import device_of

    has_code = not lacks_code(job)
    if has_code:
        graphs = trace_job(job, device_of(pools))
    else:
        typer.echo(f"warning: {PLANNED_FROM_MANIFEST}", err=True)
        graphs = graphs_without_code(job, device_of(pools))
    return graphs, plan_graphs(job, graphs, pools, prove, profile, has_code)


def plan_graphs(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    pools: Sequence[Pool],
    prove: bool = False,
    profile: Profile | None = None,
    has_code: bool = True,
) -> Plan:
    """Plan a traced job; arguments as in `trace_and_plan`.

    Args:
        has_code: True if the user's own code is on this machine.

    Raises:
        ManifestError: the engines do not fit the models.
        ManifestOutdated: a shape in the manifest differs from its model's.
        PlanError: the job cannot be planned on these devices.
        UserCodeFailed: a custom protocol does not cover the rows on these devices.
    """
    from rlhf_planner.plan import plan_job, resolve_shapes
    from rlhf_planner.problem.model_shapes import check_shapes
    from rlhf_planner.search.branch_and_bound import MAX_CANDIDATES, UNLIMITED
    from rlhf_sizing.config import hub_cache

    # The operator plans with the manifest's shapes and cannot open models: here they are compared.
    check_shapes(job, hub_cache(os.environ, Path.home()))
    max_fitted = UNLIMITED if prove else MAX_CANDIDATES
    plan = plan_job(job, graphs, pools, resolve_shapes(job, graphs), max_fitted, profile)
    for name, graph in graphs.items():
        for call in graph.calls:
            if has_code and call.protocol is not None:
                # Imported here, because it imports numpy; the protocol's module has done so, too.
                from rlhf_runtime.dataplane.user_protocol import check_cover

                # A custom protocol may depend on the mesh, which only the plan knows.
                site = plan.call(name, call.id)
                assert site is not None and site.mesh is not None, "it runs beside the policy"
                check_cover(call.protocol, site.mesh)
    return plan


def devices_text(plan: Plan) -> str:
    """Number and kind of a plan's devices, such as `4 gpu ranks`."""
    count = plan.num_devices
    return f"{count} {plan.device.value} rank{'s' if count > 1 else ''}"
