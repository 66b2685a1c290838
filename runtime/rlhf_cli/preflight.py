"""All checks of a job before anything starts; their errors are collected and raised at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from rlhf_api.error_collector import ErrorCollector
from rlhf_api.errors import ManifestError, RlhfError
from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_cli.manifests import LineContext
from rlhf_cli.planning import PLANNED_FROM_MANIFEST, plan_graphs
from rlhf_flow.document.manifest_graph import matches_settings
from rlhf_flow.errors import NoScores, ShapeUnknown
from rlhf_flow.jobs.job_graphs import graphs_without_code, trace_job
from rlhf_flow.trace.graph import Graph
from rlhf_planner.problem.devices import device_of
from rlhf_runtime.models.errors import ModelIncomplete, ModelNotFound, WrongHead
from rlhf_runtime.preflight.check_job import check_job
from rlhf_runtime.preflight.findings import Findings, Limits
from rlhf_runtime.python_path import NO_CODE, PythonPath

UserCode = AbstractContextManager[PythonPath]


@dataclass(frozen=True)
class RunTarget:
    """The environment in which a job is to run, as far as checks depend on it."""

    pools: Callable[[], Sequence[Pool]]
    """Returns the devices to plan for."""
    code: UserCode | None
    """Puts the user's Python on the path and yields its folders. None: it is not on this machine.
    """
    lines: LineContext
    """Adds line numbers to the manifest's problems."""
    one_machine: bool
    """True if workers see this machine's files."""


@dataclass(frozen=True)
class CheckedJob:
    """A job that has passed every check."""

    graphs_and_plan: tuple[Mapping[GraphName, Graph], Plan] | None
    """Graphs and plan. None: the algorithm's code is not on this machine and the manifest lacks its
    graph."""
    python_path: PythonPath
    """Folders of the user's own code and its packages."""
    facts: Sequence[str]
    """Results of the checks, one sentence each."""
    warnings: Sequence[str]
    """Things that are valid and probably not meant, one sentence each."""
    unchecked: Sequence[str]
    """Checks that are left to workers, one sentence each."""
    lines: LineContext
    """Adds line numbers to the manifest's problems."""

    @property
    def planned(self) -> tuple[Mapping[GraphName, Graph], Plan]:
        """Graphs and plan of a job whose code is on this machine."""
        assert self.graphs_and_plan is not None, "a job is run where its code is"
        return self.graphs_and_plan


@contextmanager
def preflight(
    job: RLHFJob,
    target: RunTarget,
    limits: Limits,
    trace: Callable[[RLHFJob, Device], Mapping[GraphName, Graph]] = trace_job,
) -> Iterator[CheckedJob]:
    """Trace, plan and check a job; inside the block its own code is on the path.

    Args:
        job: the manifest.
        target: its environment.
        limits: time limits of the checks.
        trace: returns the graphs of a job whose code is here.

    Raises:
        RlhfError: the only problem.
        ManifestError: all problems are in the manifest.
        SeveralErrors: all problems.
    """
    findings = Findings()
    gathered = findings.gathered
    with ExitStack() as stack:
        path: PythonPath | None = None
        # Each `gathered.check()` collects the errors of its block, and the next checks still run: a
        # user sees all problems at once.
        if target.code is not None:
            with gathered.check(), target.lines():
                path = stack.enter_context(target.code)
        else:
            findings.unchecked.append("verifiers and algorithms: their code is not on this machine")
        graphs, plan = _planned(job, target, findings, trace, has_code=path is not None)
        check_job(
            job,
            graphs,
            limits,
            findings,
            one_machine=target.one_machine,
            has_code=path is not None,
            python_path=path or NO_CODE,
        )
        _with_lines(_without_consequences(gathered.errors), target.lines).raise_all()
        graphs_and_plan = None if graphs is None or plan is None else (graphs, plan)
        yield CheckedJob(
            graphs_and_plan,
            path or NO_CODE,
            findings.facts,
            findings.warnings,
            findings.unchecked,
            target.lines,
        )


def _planned(
    job: RLHFJob,
    target: RunTarget,
    findings: Findings,
    trace: Callable[[RLHFJob, Device], Mapping[GraphName, Graph]],
    *,
    has_code: bool,
) -> tuple[Mapping[GraphName, Graph] | None, Plan | None]:
    """Trace and plan a job; None for what fails, or needs code that is not here."""
    graphs: Mapping[GraphName, Graph] | None = None
    plan: Plan | None = None
    pools: Sequence[Pool] = ()
    traceable = has_code or job.spec.algorithm.type is not AlgorithmType.CUSTOM
    # Without the code, a graph in the manifest will do, unless it is of other settings.
    if traceable or matches_settings(job):
        with findings.gathered.check(), target.lines():
            pools = target.pools()
            graphs_of = trace if traceable else graphs_without_code
            graphs = graphs_of(job, device_of(pools))
    if graphs is not None:
        findings.unchecked += [] if traceable else [PLANNED_FROM_MANIFEST]
        with findings.gathered.check(), target.lines():
            plan = plan_graphs(job, graphs, pools, has_code=has_code)
    return graphs, plan


def unchecked_notices(start: CheckedJob) -> list[str]:
    """A notice for each check that was left to workers."""
    return [f"not checked before the start: {text}" for text in start.unchecked]


def _with_lines(errors: Sequence[RlhfError], lines: LineContext) -> ErrorCollector:
    """The same errors, with the lines of their fields."""
    located = ErrorCollector()
    for error in errors:
        # A ManifestError has its lines already.
        with located.check(), nullcontext() if isinstance(error, ManifestError) else lines():
            raise error
    return located


def _without_consequences(errors: Sequence[RlhfError]) -> list[RlhfError]:
    """Drop errors that only follow from another one."""
    # A model without a folder has no dimensions; a reward model without a head fails twice, in the
    # plan and in the checks.
    remaining = list(errors)
    for cause, effect in ((ModelNotFound | ModelIncomplete, ShapeUnknown), (WrongHead, NoScores)):
        if any(isinstance(error, cause) for error in errors):
            remaining = [error for error in remaining if not isinstance(error, effect)]
    return remaining
