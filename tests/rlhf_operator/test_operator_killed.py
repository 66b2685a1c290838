"""The operator dies at any moment of a job's life, and the next one goes on where it was."""

from __future__ import annotations

import pytest

from rlhf_kube.kinds import Kind

from ..waiting import wait_until
from .cluster import SECONDS, Team, small

pytestmark = pytest.mark.cluster


def die(team: Team) -> None:
    """As a node that dies would, and a new pod elsewhere."""
    team.operator.kill()
    team.operator.start()


def test_a_job_survives_an_operator_that_dies_at_every_step(team: Team) -> None:
    head = team.heads.head(team.namespace, "steps-1")
    head.go_down()  # nothing can be submitted yet
    team.submit(small("steps"))
    die(team)
    wait_until(lambda: team.names(Kind.CLUSTER, "steps") == ["steps-1"], SECONDS, "the cluster")
    die(team)
    unanswered = "HeadUnreachable"
    wait_until(lambda: team.status("steps").reason == unanswered, SECONDS, "a wish to submit")
    assert head.submitted == []
    team.operator.kill()
    head.come_back()
    team.operator.start()
    team.wait_for_driver("steps-1-0")
    die(team)
    head.advance(3, checkpoint=2)
    team.wait_for("Running", "steps")
    die(team)
    head.advance(5)
    team.operator.kill()
    head.finish()
    team.operator.start()
    team.wait_for("Succeeded", "steps")
    die(team)
    team.wait_for_rest("steps")
    assert head.submitted == ["steps-1-0"] and team.status("steps").restarts.total == 0
    progress = team.status("steps").progress
    assert progress is not None and progress.step == 10


def test_a_driver_whose_start_nobody_saw_is_adopted(team: Team) -> None:
    """The operator dies between Ray's answer and its next reconcile."""
    team.submit(small("orphan"))
    head = team.wait_for_driver("orphan-1-0")
    team.operator.kill()
    team.operator.start()
    head.advance(2)
    team.wait_for("Running", "orphan")
    head.finish()
    team.wait_for("Succeeded", "orphan")
    assert head.submitted == ["orphan-1-0"]


def test_an_end_that_nobody_saw_is_found(team: Team) -> None:
    """The driver has given up waiting for an acknowledgement."""
    head = team.train("unseen")
    team.operator.kill()
    head.finish(lingers=False)
    team.operator.start()
    team.wait_for("Succeeded", "unseen")
    progress = team.status("unseen").progress
    assert progress is not None and progress.step == 10
    assert head.submitted == ["unseen-1-0"]


def test_a_suspension_goes_on(team: Team) -> None:
    head = team.train("paused")
    head.driver.stubborn = True
    team.edit("paused", suspend=True)
    wait_until(lambda: head.driver.stops > 0, SECONDS, "the driver being told")
    team.operator.kill()
    head.driver.kill()
    team.operator.start()
    team.wait_for("Suspended", "paused")
    team.wait_for_rest("paused")
    die(team)
    team.edit("paused", suspend=False)
    team.wait_for_driver("paused-2-0")
    assert team.status("paused").restarts.total == 0
    team.delete("rlhfjob", "paused")


def test_what_happened_while_nobody_looked_is_made_good(team: Team) -> None:
    head = team.train("unwatched")
    team.operator.kill()
    team.delete("raycluster", "unwatched-1")
    wait_until(lambda: team.names(Kind.POD, "unwatched") == [], SECONDS, "no pods")
    team.operator.start()
    again = team.wait_for_driver("unwatched-2-0")
    assert head.submitted == ["unwatched-1-0"] and again.submitted == ["unwatched-2-0"]
    assert team.status("unwatched").restarts.clusters == 1
    team.delete("rlhfjob", "unwatched")


def test_a_deletion_needs_no_operator(team: Team) -> None:
    team.train("doomed")
    team.operator.kill()
    team.delete("rlhfjob", "doomed")
    wait_until(lambda: team.kube.get(Kind.JOB, team.namespace, "doomed") is None, SECONDS, "no job")
    wait_until(lambda: team.left("doomed") == [], SECONDS, "nothing left")
    team.operator.start()
