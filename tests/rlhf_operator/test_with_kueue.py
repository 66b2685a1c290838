"""Jobs in a queue of Kueue's real manager, on a real API server with KubeRay and the operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rlhf_api.on_cluster import QUEUE_LABEL
from rlhf_api.status import ConditionType

from ..cluster.queues import PRIORITY_LABEL, queue_objects, require_kueue, used_gpus
from ..waiting import wait_until
from .cluster import SECONDS, Team
from .fake_head import FakeHead
from .world import manifest

pytestmark = pytest.mark.cluster

GPUS = 8
"""All that the queue has, and all that each job asks for."""
MADE = "rayclusters,pods,services,configmaps,secrets,networkpolicies"


@dataclass(frozen=True)
class Queue:
    """A team's queue, as its jobs meet it."""

    team: Team

    def submit(self, name: str, is_urgent: bool = False) -> None:
        """A job that waits for its turn."""
        document = manifest(name)
        labels = {QUEUE_LABEL: "queue"}
        if is_urgent:
            labels[PRIORITY_LABEL] = f"{self.team.namespace}-urgent"
        document["metadata"]["labels"] = labels
        self.team.submit(document)

    def train(self, id: str) -> FakeHead:
        """Let the driver of that name do a step; its job holds the whole quota then."""
        head = self.team.wait_for_driver(id)
        head.advance(1, checkpoint=1)
        job = id.rsplit("-", 2)[0]
        self.team.wait_for("Running", job)
        assert self.team.status(job).gpus == GPUS
        self.wait_used(GPUS)
        return head

    def wait_queued(self, name: str) -> None:
        """Until Kueue holds a new job's cluster back: it costs nothing."""
        self.wait_for("Pending", "Queued", name)
        assert self.made("pods", name) == [] and self.team.status(name).gpu_seconds == 0

    def wait_for(self, phase: str, reason: str, name: str) -> None:
        """Until a job that holds no quota is there, and says why."""
        wanted = (phase, reason, 0)
        wait_until(lambda: self._place(name) == wanted, SECONDS, f"{name} is {wanted}")

    def _place(self, name: str) -> tuple[str, str | None, int]:
        status = self.team.status(name)
        return status.phase, status.reason, status.gpus

    def wait_used(self, gpus: int) -> None:
        """Until Kueue says that so much of the quota is given out."""
        team = self.team
        wait_until(
            lambda: used_gpus(team.kubectl, team.namespace) == gpus, SECONDS, f"{gpus} GPUs in use"
        )

    def cluster(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.team.kubectl.get(self.team.namespace, "raycluster", name)
        return found

    def made(self, kinds: str, name: str) -> list[str]:
        """What is there of these kinds that was made for a job, by the operator or by KubeRay."""
        items = self.team.kubectl.get(self.team.namespace, kinds)["items"]
        found = [(each["kind"], each["metadata"]["name"]) for each in items]
        return [f"{kind}/{made}" for kind, made in found if made.startswith(f"{name}-")]

    def holders(self) -> list[str]:
        """The RayClusters that Kueue knows of."""
        workloads = self.team.kubectl.get(self.team.namespace, "workloads")["items"]
        return [each["metadata"]["ownerReferences"][0]["name"] for each in workloads]


@pytest.fixture(scope="module")
def objects(team: Team) -> Iterator[None]:
    """A queue over a quota of 8 GPUs in the team's namespace."""
    require_kueue(team.kubectl)
    items = queue_objects(team.namespace, GPUS)
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    team.kubectl("create", "--filename=-", stdin=made)
    team.kubectl.wait(team.namespace, "condition=Active", "localqueue/queue")
    yield
    team.kubectl("delete", "--filename=-", "--wait=false", stdin=made)


@pytest.fixture
def queue(team: Team, objects: None) -> Iterator[Queue]:
    """The team's queue; afterwards it is empty again."""
    made = Queue(team)
    yield made
    place = f"--namespace={team.namespace}"
    team.kubectl("delete", "rlhfjobs", "--all", place, f"--timeout={SECONDS:.0f}s")
    made.wait_used(0)


def test_a_second_job_waits_until_the_first_is_done(queue: Queue) -> None:
    queue.submit("first")
    head = queue.train("first-1-0")
    queue.submit("second")
    queue.wait_queued("second")

    head.finish()
    queue.wait_for("Succeeded", "Succeeded", "first")
    queue.train("second-1-0").finish()
    queue.wait_for("Succeeded", "Succeeded", "second")
    queue.wait_used(0)


def test_an_evicted_job_goes_on_later_on_the_same_cluster(queue: Queue) -> None:
    team = queue.team
    queue.submit("usual")
    head = queue.train("usual-1-0")
    before = queue.cluster("usual-1")["metadata"]["uid"]
    queue.submit("urgent", is_urgent=True)
    queue.wait_for("Suspended", "Evicted", "usual")
    assert team.condition("usual", ConditionType.SUSPENDED) == ("True", "Evicted")
    urgent = queue.train("urgent-1-0")
    assert queue.made("pods", "usual") == []

    head.restart()  # the pod that played it is gone
    urgent.finish()
    team.wait_for("Succeeded", "urgent")
    queue.train("usual-1-1")
    assert head.submitted == ["usual-1-0", "usual-1-1"]
    status = team.status("usual")
    assert status.restarts.total == 0 and status.attempts == 1
    assert team.condition("usual", ConditionType.SUSPENDED) is None
    assert queue.cluster("usual-1")["metadata"]["uid"] == before


def test_a_suspended_job_gives_its_quota_to_the_next(queue: Queue) -> None:
    team = queue.team
    queue.submit("kind")
    queue.train("kind-1-0")
    queue.submit("next")
    queue.wait_queued("next")
    team.edit("kind", suspend=True)
    queue.wait_for("Suspended", "Requested", "kind")
    head = queue.train("next-1-0")

    team.edit("kind", suspend=False)
    queue.wait_for("Pending", "Queued", "kind")
    head.finish()
    queue.train("kind-2-0")
    assert team.status("kind").restarts.total == 0
    team.edit("kind", suspend=True)
    queue.wait_used(0)


def test_a_queued_job_that_is_deleted_leaves_nothing(queue: Queue) -> None:
    queue.submit("holder")
    queue.train("holder-1-0")
    queue.submit("gone")
    queue.wait_queued("gone")
    assert sorted(queue.holders()) == ["gone-1", "holder-1"]
    assert len(queue.made(MADE, "gone")) >= 4  # the cluster, its manifest, token and policy
    queue.team.delete("rlhfjob", "gone")
    wait_until(lambda: queue.made(MADE, "gone") == [], SECONDS, "nothing of the deleted job")
    wait_until(lambda: queue.holders() == ["holder-1"], SECONDS, "no workload of the deleted job")
    jobs = queue.team.kubectl.get(queue.team.namespace, "rlhfjobs")["items"]
    assert [job["metadata"]["name"] for job in jobs] == ["holder"]
    assert queue.team.phase("holder") == "Running"
