"""Jobs shown while they run: drawn anew in a terminal, a line for each change elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from rlhf_api.exits import ExitCode
from rlhf_api.status import JobPhase
from rlhf_cli.cluster.client import Cluster
from rlhf_cli.cluster.console import console
from rlhf_cli.cluster.errors import JobDeleted
from rlhf_cli.cluster.following import Follower, Jobs
from rlhf_cli.cluster.job_line import job_line
from rlhf_cli.cluster.job_page import job_page
from rlhf_cli.cluster.jobs import Job, missing_job
from rlhf_cli.cluster.jobs_table import jobs_table


class Display(Protocol):
    """Shows jobs."""

    def show(self, jobs: Jobs) -> None:
        """The jobs as they are now."""


class Lines:
    """A line for each job that looks otherwise than before."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], str] = {}

    def show(self, jobs: Jobs) -> None:
        """Print what is new."""
        for key, job in sorted(jobs.items()):
            line = job_line(job)
            if self._told.get(key) != line:
                typer.echo(line)
                self._told[key] = line
        for key in self._told.keys() - jobs.keys():
            typer.echo(f"{key[1]} phase=Deleted")
            del self._told[key]


class Drawing:
    """A page for one job, a table for several, drawn several times a second."""

    def __init__(self) -> None:
        self._jobs: Jobs = {}
        self._spinner = Spinner("dots", style="cyan")

    def show(self, jobs: Jobs) -> None:
        """Draw these from now on."""
        self._jobs = jobs

    def render(self) -> RenderableType:
        """What is drawn; called from the terminal's thread."""
        jobs, now = [job for _, job in sorted(self._jobs.items())], datetime.now(UTC)
        if len(jobs) != 1:
            spaces = {job.namespace for job in jobs}
            return Text(jobs_table(jobs, now, with_namespaces=len(spaces) > 1).rstrip())
        (job,) = jobs
        page = job_page(job, now, short=True)
        return page if job.exit_code is not None else Group(page, self._spinner)


@contextmanager
def display() -> Iterator[Display]:
    """What fits where standard output goes."""
    out = console()
    if not out.is_terminal:
        yield Lines()
        return
    drawing = Drawing()
    with Live(console=out, get_renderable=drawing.render, refresh_per_second=4):
        yield drawing


def watch_jobs(cluster: Cluster, namespace: str | None) -> None:
    """Show all jobs until the user has seen enough."""
    with display() as shown:
        for jobs in Follower(cluster, namespace):
            shown.show(jobs)


def wait_for_end(
    cluster: Cluster, namespace: str, names: Collection[str], shown: Display
) -> Mapping[str, Job]:
    """Wait until jobs have ended, or can go on no more; the jobs as they are then.

    Raises:
        JobNotFound: one does not exist.
        JobDeleted: one was deleted.
    """
    return _wait(cluster, namespace, names, shown, frozenset())


def wait_for_phase(
    cluster: Cluster, namespace: str, name: str, phases: Iterable[JobPhase], shown: Display
) -> Job:
    """Wait until a job is in a phase by its newest spec, or has ended. Raises as `wait_for_end`."""
    return _wait(cluster, namespace, [name], shown, frozenset(phases))[name]


def _wait(
    cluster: Cluster,
    namespace: str,
    names: Collection[str],
    shown: Display,
    phases: frozenset[JobPhase],
) -> Mapping[str, Job]:
    seen: dict[str, Job] = {}
    for jobs in Follower(cluster, namespace, names):
        there = {job.name: job for job in jobs.values()}
        shown.show(jobs)
        for name in names:
            if name not in there:
                raise _gone(seen[name]) if name in seen else missing_job(cluster, name)
        seen |= there
        if all(_is_over(there[name], phases) for name in names):
            return there
    raise AssertionError("jobs are followed without an end")


def _is_over(job: Job, phases: frozenset[JobPhase]) -> bool:
    return job.exit_code is not None or (job.is_observed and job.status.phase in phases)


def _gone(job: Job) -> JobDeleted:
    return JobDeleted(
        f"the job was deleted before it ended: got {job.name} in {job.namespace}, last seen "
        f"{job.status.phase}; submit it again to go on from its newest checkpoint"
    )


def worst(jobs: Iterable[Job]) -> ExitCode:
    """The exit code for several ended jobs: of the first one that did not succeed."""
    codes = (job.exit_code for job in jobs)
    return next((code for code in codes if code), ExitCode.DONE)
