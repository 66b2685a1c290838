"""What a command checks of a job before anything starts, all told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

from rlhf_api.errors import ManifestError, RlhfError
from rlhf_api.gathering import ErrorCollector
from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.planned import BY_MANIFEST, plan_of
from rlhf_cli.validate import Lines
from rlhf_flow.document.manifest_graph import matches_settings
from rlhf_flow.errors import NoScores, ShapeUnknown
from rlhf_flow.jobs.job_graphs import graphs_without_code, trace_job
from rlhf_flow.trace.graph import Graph
from rlhf_planner.problem.devices import device_of
from rlhf_runtime.models.errors import ModelIncomplete, ModelNotFound, WrongHead
from rlhf_runtime.preflight.check_job import check_job
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.limits import Limits

Code = AbstractContextManager[tuple[str, ...]]


@dataclass(frozen=True)
class Target:
    """Where a job is to run, as far as its checks depend on it."""

    pools: Callable[[], Sequence[Pool]]
    """The devices that it is planned for."""
    code: Code | None
    """Puts the user's Python on the path, and gives its folders. None: it is not on this
    machine."""
    lines: Lines
    """Says of a manifest's problems at which line they are."""
    one_machine: bool
    """Whether workers see the files that are seen here."""


@dataclass(frozen=True)
class Checked:
    """A job that has passed every check."""

    traced: tuple[Mapping[GraphName, Graph], Plan] | None
    """Its graphs and plan. None: they need code that is not on this machine, and the manifest does
    not say what it calls."""
    python_path: tuple[str, ...]
    """Folders of the user's own code."""
    facts: Sequence[str]
    """What was found, one sentence each."""
    unchecked: Sequence[str]
    """What is left to workers, and why, one sentence each."""
    lines: Lines
    """Says of a manifest's problems at which line they are."""

    @property
    def planned(self) -> tuple[Mapping[GraphName, Graph], Plan]:
        """Its graphs and plan, where its code is on this machine."""
        assert self.traced is not None, "a job is run where its code is"
        return self.traced


@contextmanager
def checked(job: RLHFJob, target: Target, limits: Limits) -> Iterator[Checked]:
    """Trace, plan and check a job; inside, its own code is on the path.

    Args:
        job: the manifest.
        target: where it is to run.
        limits: of the time that checks may take.

    Raises:
        RlhfError: the one thing that is wrong.
        ManifestError: all that is wrong is the manifest's.
        SeveralErrors: all that is wrong.
    """
    findings = Findings()
    gathered = findings.gathered
    graphs: Mapping[GraphName, Graph] | None = None
    plan: Plan | None = None
    with ExitStack() as stack:
        path: tuple[str, ...] | None = None
        if target.code is not None:
            with gathered.check(), target.lines():
                path = stack.enter_context(target.code)
        else:
            findings.unchecked.append("verifiers and algorithms: their code is not on this machine")
        pools: Sequence[Pool] = ()
        traceable = path is not None or job.spec.algorithm.type is not AlgorithmType.CUSTOM
        if traceable or matches_settings(job):
            with gathered.check(), target.lines():
                pools = target.pools()
                graphs_of = trace_job if traceable else graphs_without_code
                graphs = graphs_of(job, device_of(pools))
        if graphs is not None:
            findings.unchecked += [] if traceable else [BY_MANIFEST]
            with gathered.check(), target.lines():
                plan = plan_of(job, graphs, pools, has_code=path is not None)
        check_job(
            job,
            graphs,
            limits,
            findings,
            one_machine=target.one_machine,
            has_code=path is not None,
        )
        _placed(_causes(gathered.errors), target.lines).raise_all()
        traced = None if graphs is None or plan is None else (graphs, plan)
        yield Checked(traced, path or (), findings.facts, findings.unchecked, target.lines)


def left_to_workers(start: Checked) -> list[str]:
    """What a person should know of what was not checked."""
    return [f"not checked before the start: {text}" for text in start.unchecked]


def _placed(errors: Sequence[RlhfError], lines: Lines) -> ErrorCollector:
    """The same errors, each with the place of the field that it is about."""
    placed = ErrorCollector()
    for error in errors:
        with placed.check(), nullcontext() if isinstance(error, ManifestError) else lines():
            raise error
    return placed


def _causes(errors: Sequence[RlhfError]) -> list[RlhfError]:
    """Errors without those that only follow: what has no folder has no dimensions, and a reward
    model without a head is noticed by plan and checks."""
    found = list(errors)
    for cause, effect in ((ModelNotFound | ModelIncomplete, ShapeUnknown), (WrongHead, NoScores)):
        if any(isinstance(each, cause) for each in errors):
            found = [each for each in found if not isinstance(each, effect)]
    return found
