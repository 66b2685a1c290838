"""Operators that survive nothing that they do: jobs go on from one to the next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_api.exits import ExitCode
from rlhf_kube.kinds import Kind

from ..waiting import wait_until
from . import mortal_operator
from .cluster import SECONDS, Team, small
from .mortal_operator import AFTER, BEFORE, TELL, Journal

pytestmark = pytest.mark.cluster
PROGRAM = Path(mortal_operator.__file__)


@contextmanager
def mortal(team: Team, folder: Path, *options: str) -> Iterator[Journal]:
    """Meanwhile no operator of the team survives what it does for the first time."""
    lasting, journal = team.operator, Journal(folder / "deaths")
    lasting.stop()
    program = (str(PROGRAM), str(journal.file), *options)
    team.operator = replace(lasting, program=program, process=None)
    team.operator.start()
    try:
        yield journal
    finally:
        team.operator.stop()
        team.operator = lasting
        lasting.start()


def fatal(journal: Journal, when: str) -> list[str]:
    """What operators died of, but for the rest of a status."""
    whats = [each.what for each in journal.read() if each.when == when]
    return [what.partition(":")[0] for what in whats]


def changes(journal: Journal, when: str) -> list[str]:
    """The same without what is only told, statuses and events, and without digests in names."""
    return [
        re.sub(r"(create (?:ConfigMap|Secret|NetworkPolicy) .*)-\w{8}$", r"\1", each)
        for each in fatal(journal, when)
        if not each.startswith(("status", "create Event"))
    ]


def delete(team: Team, name: str) -> None:
    """Delete a job, and wait until nothing of it is left."""
    team.delete("rlhfjob", name)
    wait_until(lambda: team.kube.get(Kind.JOB, team.namespace, name) is None, SECONDS, "no job")
    wait_until(lambda: team.left(name) == [], SECONDS, "nothing left")


def test_a_job_succeeds(team: Team, tmp_path: Path) -> None:
    with mortal(team, tmp_path) as journal:
        team.submit(small("frail"))
        head = team.wait_for_driver("frail-1-0")
        head.advance(3, checkpoint=2)
        team.wait_for("Running", "frail")
        head.finish()
        team.wait_for("Succeeded", "frail")
        team.wait_for_rest("frail")
        children = f"frail-{team.job('frail')['metadata']['uid'][:8]}"
        delete(team, "frail")
    assert head.submitted == ["frail-1-0"]
    assert head.submissions["frail-1-0"].acknowledged is not None
    for when in (BEFORE, AFTER):
        assert fatal(journal, when).count("status RLHFJob frail") >= 5
        assert changes(journal, when) == [
            f"create ConfigMap {children}",
            f"create Secret {children}",
            f"create NetworkPolicy {children}",
            "create RayCluster frail-1",
            "submit frail-1-0",
            "acknowledge frail-1-0",
            "delete RayCluster frail-1",
        ]


def test_a_job_waits_goes_on_and_is_deleted(team: Team, tmp_path: Path) -> None:
    first = team.train("unsteady")
    wait_until(lambda: "Running" in team.events("unsteady"), SECONDS, "an event")
    before = Counter(team.events("unsteady"))
    with mortal(team, tmp_path, TELL) as journal:
        team.edit("unsteady", suspend=True)
        team.wait_for("Suspended", "unsteady")
        team.wait_for_rest("unsteady")
        assert first.submissions["unsteady-1-0"].state.has_ended
        team.edit("unsteady", suspend=False)
        second = team.wait_for_driver("unsteady-2-0")
        second.advance(2)
        team.wait_for("Running", "unsteady")
        wait_until(lambda: team.events("unsteady").count("Running") == 2, SECONDS, "an event")
        told = Counter(team.events("unsteady")) - before
        assert team.status("unsteady").restarts.total == 0
        delete(team, "unsteady")
    assert first.submitted == ["unsteady-1-0"] and second.submitted == ["unsteady-2-0"]
    assert told.keys() >= {"Requested", "Provisioning", "Submitted", "Running"}
    assert set(told.values()) == {1}, told
    assert {f"create Event unsteady {reason}" for reason in told} <= set(fatal(journal, AFTER))
    fatal_both = set(fatal(journal, BEFORE)) & set(fatal(journal, AFTER))
    assert fatal_both >= {
        "stop unsteady-1-0",
        "delete RayCluster unsteady-1",
        "create RayCluster unsteady-2",
        "submit unsteady-2-0",
    }


def test_a_failure_counts_once(team: Team, tmp_path: Path) -> None:
    """Of a driver that found its workers dirty: they are replaced before the next one starts."""
    head = team.train("dirty")
    worker = team.pod("dirty", "worker")
    assert worker is not None
    with mortal(team, tmp_path) as journal:
        head.finish(ExitCode.RETRIABLE, "DirtyCluster", "actors are left")
        team.wait_for_driver("dirty-1-1")
        again = team.pod("dirty", "worker")
        assert again is not None and again["metadata"]["uid"] != worker["metadata"]["uid"]
        head.advance(2)
        team.wait_for("Running", "dirty")
        restarts = team.status("dirty").restarts
        delete(team, "dirty")
    assert (restarts.drivers, restarts.clusters, restarts.total) == (1, 0, 1)
    assert head.submitted == ["dirty-1-0", "dirty-1-1"]
    replaced = f"delete Pod {worker['metadata']['name']}"
    assert replaced in fatal(journal, BEFORE) and replaced in fatal(journal, AFTER)
    pods = [what for what in fatal(journal, AFTER) if what.startswith("delete Pod")]
    assert pods == [replaced]
