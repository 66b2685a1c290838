"""Jobs as they change, over broken connections; and how they are drawn meanwhile."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from itertools import islice

import pytest
from rich.console import Console

from rlhf_cli.cluster.watching import Follower, Jobs, LiveDisplay
from rlhf_kube.errors import Unreachable, WatchExpired
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Snapshot, WatchEvent

from ...rlhf_kube.fake_kube import FakeKube
from .objects import RUNNING, job, submission


class Time:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def follow(self, cluster: FakeKube, *names: str) -> Iterator[Jobs]:
        return iter(Follower(cluster, "team", names, self.pause, lambda: self.now))


class Restarting(FakeKube):
    """A cluster whose API server is away now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.away = 0
        self.expired = 0
        self.cut = 0
        """How many watches end at once."""
        self.lists = 0

    def snapshot(self, kind: Kind, namespace: str | None, fields: str = "") -> Snapshot:
        if self.away:
            self.away -= 1
            raise Unreachable("away")
        self.lists += 1
        return super().snapshot(kind, namespace, fields)

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[WatchEvent]:
        if self.expired:
            self.expired -= 1
            raise WatchExpired
        if self.cut:
            self.cut -= 1
            return iter(())
        return super().watch(kind, namespace, version, fields)


@pytest.fixture
def cluster() -> Restarting:
    found = Restarting()
    for name in ("one", "two"):
        found.create(submission(name, "team"))
    return found


def phases(jobs: Jobs) -> dict[str, str]:
    return {name: str(found.status.phase) for (_, name), found in jobs.items()}


def changes(cluster: FakeKube, name: str, phase: str) -> None:
    status = {"phase": phase}
    cluster.script.append(partial(cluster.set_status, Kind.JOB, "team", name, status))


def test_jobs_are_told_at_first_and_after_each_change(cluster: Restarting) -> None:
    changes(cluster, "one", "Running")
    cluster.script.append(partial(cluster.delete, Kind.JOB, "team", "two"))
    told = [phases(jobs) for jobs in islice(Time().follow(cluster), 3)]
    assert told == [
        {"one": "Pending", "two": "Pending"},
        {"one": "Running", "two": "Pending"},
        {"one": "Running"},
    ]


@pytest.mark.parametrize("names", [("one",), ("one", "none")])
def test_only_those_that_are_meant_are_told(cluster: Restarting, names: tuple[str, ...]) -> None:
    changes(cluster, "two", "Running")
    changes(cluster, "one", "Failed")
    told = [phases(jobs) for jobs in islice(Time().follow(cluster, *names), 2)]
    assert told == [{"one": "Pending"}, {"one": "Failed"}]


def test_a_cluster_that_comes_back_is_asked_again(cluster: Restarting) -> None:
    time = Time()
    jobs = time.follow(cluster)
    next(jobs)

    def restart() -> None:
        cluster.away = 3
        cluster.set_status(Kind.JOB, "team", "one", {"phase": "Running"})
        raise Unreachable("away")

    cluster.script.append(restart)
    assert phases(next(jobs))["one"] == "Running"
    assert time.pauses == [1, 2, 4, 8]
    changes(cluster, "two", "Failed")
    assert phases(next(jobs))["two"] == "Failed"


def test_a_cluster_that_stays_away_is_told_after_two_minutes(cluster: Restarting) -> None:
    time, cluster.away = Time(), 10**6
    with pytest.raises(Unreachable):
        next(time.follow(cluster))
    assert 120 < time.now < 140


def test_a_watch_that_has_expired_is_begun_anew(cluster: Restarting) -> None:
    time, cluster.expired = Time(), 1
    changes(cluster, "one", "Running")
    told = [phases(jobs)["one"] for jobs in islice(time.follow(cluster), 3)]
    assert told == ["Pending", "Pending", "Running"] and cluster.lists == 2


def test_watches_that_end_at_once_are_not_begun_in_a_hurry(cluster: Restarting) -> None:
    time, cluster.cut = Time(), 3
    changes(cluster, "one", "Running")
    told = [phases(jobs)["one"] for jobs in islice(time.follow(cluster), 2)]
    assert told == ["Pending", "Running"] and time.pauses == [1, 1, 1] and cluster.lists == 1


def drawn(*statuses: dict[str, object]) -> str:
    drawing = LiveDisplay()
    jobs = [job(status, name=f"job-{number}") for number, status in enumerate(statuses)]
    drawing.show({(each.namespace, each.name): each for each in jobs})
    out = io.StringIO()
    Console(file=out, width=120).print(drawing.render())
    return out.getvalue()


def test_one_job_is_drawn_as_a_page_and_several_as_a_table() -> None:
    page = drawn(RUNNING)
    assert "120/500  24 %" in page and page.rstrip()[-1] in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    assert drawn(RUNNING | {"phase": "Succeeded"}).rstrip()[-1] not in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    table = drawn(RUNNING, RUNNING).splitlines()
    assert [line.split()[0] for line in table] == ["NAME", "job-0", "job-1"]
