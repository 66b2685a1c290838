"""A pretended world in which everything goes wrong: lost answers, deaths, pods that end slowly.

What happens is a test's choice; `heal` ends all trouble, and `run_on` lets the job run to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rlhf_api.status import JobPhase
from rlhf_kube.errors import Conflict, Forbidden, KubeError, Unreachable
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest
from rlhf_operator.clients.cached_kube import WATCHED, Key
from rlhf_operator.clients.head.protocol import HeadUnreachable, SubmissionState
from rlhf_operator.process.app import RESYNC_SECONDS

from ..rlhf_kube.fake_kube import FakeKube
from .direct_client import DirectClient
from .fake_driver import FakeDriver
from .fake_head import FakeHeads
from .world import NAMESPACE, World, claim, manifest

FOREGROUND = "foregroundDeletion"
"""The garbage collector's finalizer."""
KUBELET = "example.com/kubelet"
"""A finalizer on pods: they end when their kubelet says so, not when they are deleted."""
GRACE_SECONDS = 60.0
"""After that no process of a pod that was told to end lives, though its node may be lost."""
PATIENCE_SECONDS = 120.0
"""After that Ray kills a driver that does not obey."""
KEY = (NAMESPACE, "sort")


class OperatorDied(Exception):
    """The process is gone in the middle of what it did."""


@dataclass
class Trouble:
    """What befalls the operator's requests that come next."""

    errors: list[KubeError | HeadUnreachable | OperatorDied] = field(default_factory=list)
    skip: int = 0
    """Requests that are let through first."""
    is_after: bool = False
    """Whether requests have their effect first, and only the answer is lost."""

    is_on: bool = False
    """Whether it is the operator that asks."""

    def strike(self, is_after: bool, is_kube: bool) -> None:
        if not self.is_on or is_after is not self.is_after or not self.errors:
            return
        if self.skip > 0:
            self.skip -= 1
            return
        fits = KubeError if is_kube else HeadUnreachable
        if isinstance(self.errors[0], (fits, OperatorDied)):
            raise self.errors.pop(0)


@dataclass
class TroubledKube(FakeKube):
    """Kubernetes whose answers can be lost after a request was done."""

    trouble_now: Trouble = field(default_factory=Trouble)

    def _try(self, verb: str, kind: Kind) -> None:
        super()._try(verb, kind)
        self.trouble_now.strike(is_after=False, is_kube=True)

    def create(self, manifest: Manifest) -> bool:
        made = super().create(manifest)
        self.trouble_now.strike(is_after=True, is_kube=True)
        return made

    def apply(self, manifest: Manifest, *, force: bool = False, dry_run: bool = False) -> Manifest:
        applied = super().apply(manifest, force=force, dry_run=dry_run)
        self.trouble_now.strike(is_after=True, is_kube=True)
        return applied

    def apply_status(self, manifest: Manifest) -> Manifest:
        applied = super().apply_status(manifest)
        self.trouble_now.strike(is_after=True, is_kube=True)
        return applied

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        was_there = super().delete(kind, namespace, name, uid, grace_seconds)
        self.trouble_now.strike(is_after=True, is_kube=True)
        return was_there


@dataclass
class TroubledWorld(World):
    """One job, and everything that can befall it."""

    trouble: Trouble = field(default_factory=Trouble)
    _listed_at: float = float("inf")
    """When all is listed, should something have been deleted that nobody told."""
    made_of: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each cluster that was ever made, the manifest that its drivers read."""

    def reconcile(self, key: Key) -> None:
        self.trouble.is_on = True
        before = self.status().phase if self.exists() else None
        try:
            super().reconcile(key)
        except OperatorDied:
            self.start_operator()
        finally:
            self.trouble.is_on = False
        living = [driver.id for driver in self.living()]
        if self.exists() and before is not JobPhase.SUCCEEDED is self.status().phase:
            made = self.made_of[f"sort-{self.status().attempts}"]
            wanted = self.job()["spec"]["schedule"]
            assert made["spec"]["schedule"]["steps"] == wanted["steps"], "an edit is lost"
        assert len(living) <= 1, f"{living} write to the same folder"

    def living(self) -> list[FakeDriver]:
        """The job's drivers that may be running, on whatever pod."""
        all = [each for head in self.heads.all() for each in head.submissions.values()]
        return [
            each for each in all if "rlhf drive" in each.entrypoint and not each.state.has_ended
        ]

    def _on_change(self, type: str, kind: Kind, object: Manifest) -> None:
        super()._on_change(type, kind, object)
        if kind is Kind.CLUSTER and type == "ADDED":
            self.made_of[object["metadata"]["name"]] = self.manifest_of(object["metadata"]["name"])
        labels = object["metadata"].get("labels", {})
        is_end = kind is Kind.POD and type == "DELETED" and labels["ray.io/node-type"] == "head"
        if is_end:
            self.head(labels["ray.io/cluster"]).restart()  # its processes end with it

    def _make_pod(self, cluster: Any, role: str, group: str) -> None:
        name = cluster["metadata"]["name"]
        super()._make_pod(cluster, role, group)
        pod = self.pods(name)[-1]
        self.kube.edit(
            Kind.POD, NAMESPACE, pod, lambda each: each["metadata"].update(finalizers=[KUBELET])
        )

    def kill_pod(self, role: str, cluster: str = "sort-1") -> None:
        """A pod is told to end; it does so when its kubelet has its turn."""
        for pod in self.pods(cluster):
            if f"-{role}-" in pod:
                self.kube.remove(Kind.POD, NAMESPACE, pod)
                return

    def run_job_to_training(self) -> None:
        """Give the job pods, and let its driver do a step."""
        self.settle()
        self.run_kuberay()
        self.settle()
        self.head().advance(1)
        self.wait(self.settings.poll_seconds)
        assert self.phase() == (JobPhase.RUNNING, "Running")

    def delete_in_foreground(self) -> None:
        """Delete the job; it stays until the garbage collector has deleted what it owns."""
        self.kube.edit(Kind.JOB, *KEY, lambda job: job["metadata"].update(finalizers=[FOREGROUND]))
        self.delete_job()

    def collect_garbage(self) -> None:
        """Delete what deleted jobs own, and then a job that was deleted in the foreground."""
        if self.exists() and FOREGROUND in self.job()["metadata"].get("finalizers", ()):
            uid = self.job()["metadata"]["uid"]
            for address, stored in list(self.kube.objects.items()):
                owners = stored["metadata"].get("ownerReferences", ())
                is_left = address in self.kube.objects  # it may have gone with another one
                if is_left and any(owner["uid"] == uid for owner in owners):
                    self.kube.remove(*address)
            self.kube.edit(Kind.JOB, *KEY, lambda job: job["metadata"].update(finalizers=[]))
        self.kube.collect_garbage()

    def run_kubelets(self) -> None:
        """Pods that were told to end do so."""
        for kind, _, name in list(self.kube.objects):
            is_there = kind is Kind.POD and (kind, NAMESPACE, name) in self.kube.objects
            if is_there and self.is_ending(name):
                self.kube.edit(
                    kind, NAMESPACE, name, lambda each: each["metadata"].update(finalizers=[])
                )

    def end_processes(self) -> None:
        """Whatever becomes of a pod that was told to end, its processes end in time."""
        for kind, _, name in list(self.kube.objects):
            if kind is Kind.POD and "-head-" in name and self.is_ending(name):
                pod = self.kube.objects[kind, NAMESPACE, name]
                ends = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
                if (self.now() - ends).total_seconds() >= GRACE_SECONDS:
                    self.head(pod["metadata"]["labels"]["ray.io/cluster"]).restart()

    def settle(self, limit: int = 200) -> None:
        self.end_processes()
        self._list_all()
        super().settle(limit)

    def wait(self, seconds: float) -> None:
        if self._listed_at <= self.seconds + seconds:
            rest = self.seconds + seconds - self._listed_at
            super().wait(max(0.0, self._listed_at - self.seconds))
            seconds = rest
        super().wait(seconds)
        if seconds >= PATIENCE_SECONDS:
            for driver in self.living():
                if driver.stops:
                    driver.kill()

    def lose_deletions(self) -> None:
        """A watch begins anew: what was deleted meanwhile is not told. In time all is listed."""
        self.untold = [each for each in self.untold if each[0] != "DELETED"]
        self.tell()
        self._listed_at = self.seconds + RESYNC_SECONDS

    def _list_all(self) -> None:
        """What app.py does now and then."""
        if self.seconds >= self._listed_at:
            self._listed_at = float("inf")
            for kind in WATCHED:
                self._changed |= self.cached.resync(kind, None).changed

    def set_claim(self, exists: bool) -> None:
        is_there = (Kind.CLAIM, NAMESPACE, "shared") in self.kube.objects
        if exists and not is_there:
            self.kube.create(claim())
        elif is_there and not exists:
            self.kube.remove(Kind.CLAIM, NAMESPACE, "shared")

    def pods_of_all(self) -> list[str]:
        return [name for kind, _, name in self.kube.objects if kind is Kind.POD]

    def exists(self) -> bool:
        return (Kind.JOB, *KEY) in self.kube.objects

    def heal(self) -> None:
        """Nothing is wrong any more, but what the job did itself."""
        self.trouble.errors.clear()
        self.queue_holds = False
        self.watches_are_late = False
        self.tell()
        self.kube.collects_at_once = True
        self.collect_garbage()
        for head in self.heads.all():
            head.come_back()
            head.stubborn = False
        if self.exists():  # it may be longer than activeDeadlineSeconds, which is not allowed
            self.kube.edit(
                Kind.JOB, *KEY, lambda job: job["spec"].pop("startDeadlineSeconds", None)
            )
        self._changed.add(KEY)

    def run_on(self) -> None:
        """Two minutes in a world where everything works."""
        self.run_kubelets()
        for cluster in self.clusters():
            self.suspend_cluster(False, cluster)
        self.run_kuberay()
        self.wait(PATIENCE_SECONDS)
        for driver in self.living():
            if driver.state is SubmissionState.PENDING:
                driver.begin()
            if driver.report is None or not driver.report.final:
                driver.finish()
        self.wait(10)


@contextmanager
def troubled_world() -> Iterator[TroubledWorld]:
    """A world with one job."""
    with FakeHeads(listens=False) as heads:
        trouble = Trouble()
        client = DirectClient(heads)
        client.before = lambda what: trouble.strike(is_after=False, is_kube=False)
        client.after = lambda what: trouble.strike(is_after=True, is_kube=False)
        world = TroubledWorld(
            heads, kube=TroubledKube(trouble_now=trouble), client=client, trouble=trouble
        )
        world.submit(manifest(failurePolicy={"maxRestarts": 3, "backoffSeconds": 5}))
        yield world


ERRORS = (
    lambda: Conflict("409: it changed"),
    lambda: Unreachable("no answer"),
    lambda: Forbidden("403: quota"),
    lambda: HeadUnreachable("no answer"),
    OperatorDied,
)
