"""A job's graphs and plan, with what only the runtime can check of them."""

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

BY_MANIFEST = (
    "the algorithm's code is not on this machine: it is planned by the graph in the manifest, "
    "which the driver compares with the code"
)
"""What a person should know of such a plan."""


def planned(
    job: RLHFJob, pools: Sequence[Pool], prove: bool = False, profile: Profile | None = None
) -> tuple[Mapping[GraphName, Graph], Plan]:
    """Trace a job and plan it.

    Args:
        job: the manifest.
        pools: its devices.
        prove: whether to search until no faster plan is possible.
        profile: measured on such devices, if there is one.

    Raises:
        FlowError: an algorithm that cannot be traced.
        ManifestError: rewards that do not fit its roles.
        PlanError: a job that cannot be planned on these devices.
        UserCodeFailed: a protocol of its own that does not cover the rows on these devices.
    """
    from rlhf_flow.document.manifest_graph import lacks_code
    from rlhf_flow.jobs.job_graphs import graphs_without_code, trace_job
    from rlhf_planner.problem.devices import device_of

    has_code = not lacks_code(job)
    if has_code:
        graphs = trace_job(job, device_of(pools))
    else:
        typer.echo(f"warning: {BY_MANIFEST}", err=True)
        graphs = graphs_without_code(job, device_of(pools))
    return graphs, plan_of(job, graphs, pools, prove, profile, has_code)


def plan_of(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    pools: Sequence[Pool],
    prove: bool = False,
    profile: Profile | None = None,
    has_code: bool = True,
) -> Plan:
    """Plan a job that is traced; arguments as above.

    Args:
        has_code: whether the user's own code is here.

    Raises:
        ManifestError: engines that do not fit its models.
        ManifestOutdated: a shape that is not its model's.
        PlanError: a job that cannot be planned on these devices.
        UserCodeFailed: a protocol of its own that does not cover the rows on these devices.
    """
    from rlhf_planner.plan import plan_job, resolve_shapes
    from rlhf_planner.problem.model_shapes import check_shapes
    from rlhf_planner.search.branch_and_bound import MAX_CANDIDATES, UNLIMITED
    from rlhf_sizing.config import hub_cache

    check_shapes(job, hub_cache(os.environ, Path.home()))
    max_candidates = UNLIMITED if prove else MAX_CANDIDATES
    plan = plan_job(job, graphs, pools, resolve_shapes(job, graphs), max_candidates, profile)
    for name, graph in graphs.items():
        for call in graph.calls:
            if has_code and call.protocol is not None:
                # It imports numpy, as that protocol's module has done.
                from rlhf_runtime.dataplane.user_protocol import check_cover

                site = plan.call(name, call.id)
                assert site is not None and site.mesh is not None, "it runs beside the policy"
                check_cover(call.protocol, site.mesh)
    return plan


def devices_text(plan: Plan) -> str:
    """What a job runs on, for people."""
    count = plan.num_devices
    return f"{count} {plan.device.value} rank{'s' if count > 1 else ''}"
