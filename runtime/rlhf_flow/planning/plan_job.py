"""From a job's graphs and devices to its plan, or to why there is none and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.plan import Plan, Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.errors import DoesNotFit
from rlhf_flow.planning.advice import advice_lines
from rlhf_flow.planning.context_windows import check_contexts
from rlhf_flow.planning.job_problem import problem_of
from rlhf_flow.planning.plan_problem import plan_problem
from rlhf_flow.planning.problem import Graphs
from rlhf_flow.planning.search.find_plan import MAX_FITTED
from rlhf_flow.planning.seconds.profile import Profile
from rlhf_flow.planning.shapes import DecoderShape


def plan_job(
    job: RLHFJob,
    graphs: Graphs,
    devices: Sequence[Pool],
    shapes: Mapping[str, DecoderShape],
    most_fitted: int = MAX_FITTED,
    profile: Profile | None = None,
) -> Plan:
    """The plan of a job.

    Args:
        job: the manifest.
        graphs: traced from it.
        devices: its pools, all of one kind; placement.maxDevices may take fewer.
        shapes: of every role with a model.
        most_fitted: ways to compute that a search fits into memory, at most.
        profile: measured on such devices, if there is one.

    Raises:
        PlanError, ManifestError: as `plan_problem` does, or as `check_contexts`; where a job does
            not fit, the message also says what would fit.
    """
    check_contexts(job, graphs)
    try:
        return plan_problem(problem_of(job, graphs, devices, shapes, profile), most_fitted)
    except DoesNotFit as error:
        lines = [str(error), *advice_lines(job, graphs, devices, shapes)]
        raise DoesNotFit("\n".join(lines)) from error
