"""Follow jobs on a cluster and show their changes: redrawn in a terminal, else line by line."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Protocol

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from rlhf_api.exits import ExitCode
from rlhf_api.status import JobPhase
from rlhf_cli.cluster.errors import JobDeleted
from rlhf_cli.cluster.job_page import job_page
from rlhf_cli.cluster.job_text import job_line, jobs_table
from rlhf_cli.cluster.jobs import Job, job_not_found, read_job
from rlhf_cli.cluster.top_table import top_table
from rlhf_cli.console import page_console
from rlhf_kube.errors import Unreachable, WatchExpired
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster

Jobs = Mapping[tuple[str, str], Job]
"""Jobs by namespace and name."""

PATIENCE_SECONDS: Final = 120.0
"""Time without an answer after which the cluster counts as unreachable."""
FIRST_PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 15.0


class Follower:
    """Iterates over the state of jobs: one list, then watches.

    It survives broken connections and restarts of the API server.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str | None,
        names: Collection[str] = (),
        pause: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; no request is sent yet.

        Args:
            namespace: the namespace to watch; None for all.
            names: the jobs to watch; empty for all.
            pause: sleeps so many seconds.
            now: a clock in seconds.
        """
        self._cluster, self._namespace = cluster, namespace
        self._names = frozenset(names)
        # Names can only be selected one at a time: several jobs are filtered here.
        self._fields = f"metadata.name={min(names)}" if len(self._names) == 1 else ""
        self._pause, self._now = pause, now
        self._jobs: dict[tuple[str, str], Job] = {}

    def __iter__(self) -> Iterator[Jobs]:
        """Yield all jobs, again after each change; it does not end by itself.

        Raises:
            Unreachable: the cluster did not answer for PATIENCE_SECONDS.
        """
        lost_since: float | None = None
        wait = FIRST_PAUSE_SECONDS
        while True:
            try:
                for jobs in self._until_expired():
                    lost_since, wait = None, FIRST_PAUSE_SECONDS
                    yield jobs
            except Unreachable:
                # A restart of the API server takes less; a wrong address or network lasts longer.
                lost_since = self._now() if lost_since is None else lost_since
                if self._now() - lost_since > PATIENCE_SECONDS:
                    raise
                self._pause(wait)
                wait = min(2 * wait, MAX_PAUSE_SECONDS)

    def _until_expired(self) -> Iterator[Jobs]:
        snapshot = self._cluster.snapshot(Kind.JOB, self._namespace, self._fields)
        jobs = map(read_job, snapshot.items)
        self._jobs = {(job.namespace, job.name): job for job in jobs if self._is_selected(job)}
        yield dict(self._jobs)
        version = snapshot.version
        while True:
            started = self._now()
            try:
                for change in self._cluster.watch(Kind.JOB, self._namespace, version, self._fields):
                    version = change.object["metadata"]["resourceVersion"]
                    if self._apply(read_job(change.object), change.is_deletion):
                        yield dict(self._jobs)
            except WatchExpired:
                return  # the caller lists again
            if self._now() - started < FIRST_PAUSE_SECONDS:
                # Some proxies close a watch at once; without a pause this loop would flood them.
                self._pause(FIRST_PAUSE_SECONDS)

    def _apply(self, job: Job, is_deletion: bool) -> bool:
        if not self._is_selected(job):
            return False
        if is_deletion:
            self._jobs.pop((job.namespace, job.name), None)
        else:
            self._jobs[(job.namespace, job.name)] = job
        return True

    def _is_selected(self, job: Job) -> bool:
        return not self._names or job.name in self._names


class Display(Protocol):
    """Shows jobs."""

    def show(self, jobs: Jobs) -> None:
        """Show the jobs in their current state."""


class LineDisplay:
    """Prints a line for each job whose line has changed."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], str] = {}

    def show(self, jobs: Jobs) -> None:
        for key, job in sorted(jobs.items()):
            line = job_line(job)
            if self._lines.get(key) != line:
                typer.echo(line)
                self._lines[key] = line
        for key in self._lines.keys() - jobs.keys():
            typer.echo(f"{key[1]} phase=Deleted")
            del self._lines[key]


class LiveDisplay:
    """Redraws a page for one job, or a table of several."""

    def __init__(self) -> None:
        self._jobs: Jobs = {}
        self._spinner = Spinner("dots", style="cyan")

    def show(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def render(self) -> RenderableType:
        """Render the current state; called from rich's thread."""
        jobs, now = [job for _, job in sorted(self._jobs.items())], datetime.now(UTC)
        if len(jobs) != 1:
            spaces = {job.namespace for job in jobs}
            return Text(jobs_table(jobs, now, with_namespaces=len(spaces) > 1).rstrip())
        (job,) = jobs
        page = job_page(job, now, short=True)
        return page if job.exit_code is not None else Group(page, self._spinner)


@contextmanager
def display() -> Iterator[Display]:
    """Choose the display for standard output."""
    out = page_console()
    if not out.is_terminal:
        yield LineDisplay()
        return
    drawing = LiveDisplay()
    with Live(console=out, get_renderable=drawing.render, refresh_per_second=4):
        yield drawing


def watch_jobs(cluster: Cluster, namespace: str | None) -> None:
    """Show all jobs until Ctrl-C."""
    with display() as shown:
        for jobs in Follower(cluster, namespace):
            shown.show(jobs)


class TopDisplay:
    """Redraws the table of `rlhf top`."""

    def __init__(self, *, all_jobs: bool, with_namespaces: bool) -> None:
        self._all_jobs, self._with_namespaces = all_jobs, with_namespaces
        self._jobs: Jobs = {}

    def show(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def render(self) -> RenderableType:
        """Render the current state; called from rich's thread."""
        table = top_table(
            self._jobs.values(),
            datetime.now(UTC),
            all_jobs=self._all_jobs,
            with_namespaces=self._with_namespaces,
        )
        return Text(table.rstrip(), no_wrap=True)


def follow_table(cluster: Cluster, namespace: str | None, all_jobs: bool) -> None:
    """Redraw the table of `rlhf top` in a terminal until Ctrl-C.

    Args:
        namespace: the namespace to show; None for all.
        all_jobs: also list ended jobs that hold no GPU.
    """
    drawing = TopDisplay(all_jobs=all_jobs, with_namespaces=namespace is None)
    with Live(console=page_console(), get_renderable=drawing.render, refresh_per_second=2):
        for jobs in Follower(cluster, namespace):
            drawing.show(jobs)


def wait_for_end(
    cluster: Cluster, namespace: str, names: Collection[str], shown: Display
) -> Mapping[str, Job]:
    """Wait until the jobs have ended or are stalled; return their last states.

    Raises:
        JobNotFound: a job does not exist.
        JobDeleted: a job was deleted.
    """
    return _wait(cluster, namespace, names, shown, frozenset())


def wait_for_phase(
    cluster: Cluster, namespace: str, name: str, phases: Iterable[JobPhase], shown: Display
) -> Job:
    """Wait until a job has reached one of the phases, or has ended. Raises as `wait_for_end`."""
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
        current = {job.name: job for job in jobs.values()}
        shown.show(jobs)
        for name in names:
            if name not in current:
                # A job that was seen before has been deleted; one that was never seen does not
                # exist.
                raise _deleted_error(seen[name]) if name in seen else job_not_found(cluster, name)
        seen |= current
        if all(_is_done(current[name], phases) for name in names):
            return current
    raise AssertionError("a Follower does not end")


def _is_done(job: Job, phases: frozenset[JobPhase]) -> bool:
    return job.exit_code is not None or (job.is_observed and job.status.phase in phases)


def _deleted_error(job: Job) -> JobDeleted:
    return JobDeleted(
        f"the job was deleted before it ended: got {job.name} in {job.namespace}, last seen "
        f"{job.status.phase}; submit it again to go on from its newest checkpoint"
    )


def combined_exit_code(jobs: Iterable[Job]) -> ExitCode:
    """The exit code for several jobs: that of the first that did not succeed."""
    codes = (job.exit_code for job in jobs)
    return next((code for code in codes if code), ExitCode.DONE)
