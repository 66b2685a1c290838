"""From a job's graphs and devices to its plan, or to why there is none and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api import RLHFJob
from rlhf_api.plan import Plan, Pool
from rlhf_flow.errors import DoesNotFit
from rlhf_flow.planning.advice import advice_lines
from rlhf_flow.planning.job_problem import problem_of
from rlhf_flow.planning.plan_problem import plan_problem
from rlhf_flow.planning.problem import Graphs
from rlhf_flow.planning.shapes import DecoderShape


def plan_job(
    job: RLHFJob,
    graphs: Graphs,
    devices: Sequence[Pool],
    shapes: Mapping[str, DecoderShape],
) -> Plan:
    """The plan of a job.

    Args:
        job: the manifest.
        graphs: traced from it.
        devices: its pools, all of one kind; placement.maxDevices may take fewer.
        shapes: of every role with a model.

    Raises:
        PlanError, ManifestError: as `plan_problem` does; where a job does not fit, the message also
            says what would fit.
    """
    try:
        return plan_problem(problem_of(job, graphs, devices, shapes))
    except DoesNotFit as error:
        lines = [str(error), *advice_lines(job, graphs, devices, shapes)]
        raise DoesNotFit("\n".join(lines)) from error
