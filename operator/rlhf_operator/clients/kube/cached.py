"""Kubernetes with a memory: what watches tell of jobs, their clusters and pods is not asked for.

Watches lose nothing while they live, but when one begins anew nobody tells what was deleted in
between: so everything is listed now and then, and compared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_api.on_cluster import FINALIZER, JOB_LABEL
from rlhf_api.status import JobPhase
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Kube, Manifest, Unreachable

Key = tuple[str, str]
"""Namespace and name of a job."""
MOST_GONE = 4096
"""Objects of which it is remembered that they are gone: answers and lists may be late."""
WATCHED = (Kind.JOB, Kind.CLUSTER, Kind.POD)


@dataclass(frozen=True)
class Resynced:
    """What a list has shown that nobody had told."""

    changed: set[Key]
    """Jobs that it concerns."""
    gone: set[Key]
    """Those of them, of the others that were asked for, that are not there any more."""


@dataclass
class CachedKube:
    """A cluster of which some kinds are remembered. Its methods may be called from several
    threads.

    A job that has ended and holds nothing is not kept: nothing is done about it any more, and when
    something is asked, it is read.
    """

    kube: Kube
    is_away: bool = False
    """Whether Kubernetes has not answered the last ping."""
    _objects: dict[Kind, dict[Key, dict[str, Manifest]]] = field(
        default_factory=lambda: {kind: {} for kind in WATCHED}
    )
    """By kind, by job, by the object's own name."""
    _gone: OrderedDict[str | None, str] = field(default_factory=OrderedDict)
    """What was told to be gone lately: by uid, the version at which it went."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # What watches tell

    def put(self, kind: Kind, found: Manifest) -> None:
        """An object is there, as it is told; older news than are known already change nothing."""
        metadata = {**found["metadata"]}
        metadata.pop("managedFields", None)
        key = job_of(kind, metadata)
        if key is None:
            return
        if kind is Kind.JOB and is_settled(found):
            self._drop(kind, key, metadata["name"])
            return
        with self._lock:
            known = self._objects[kind].get(key, {}).get(metadata["name"])
            if known is not None and _is_older(metadata["resourceVersion"], known["metadata"]):
                return
            gone = self._gone.get(metadata.get("uid"))
            if gone is not None and not _is_older(gone, metadata):
                return
            held = self._objects[kind].setdefault(key, {})
            held[metadata["name"]] = {**found, "metadata": metadata}

    def drop(self, kind: Kind, gone: Manifest) -> None:
        """An object is gone, or is none of a job's any more."""
        metadata = gone["metadata"]
        key = job_of(kind, metadata)
        with self._lock:
            self._gone[metadata.get("uid")] = metadata["resourceVersion"]
            if len(self._gone) > MOST_GONE:
                self._gone.popitem(last=False)
        if key is not None:
            self._drop(kind, key, metadata["name"], metadata.get("uid"))

    def resync(self, kind: Kind, namespace: str | None, others: Iterable[Key] = ()) -> Resynced:
        """List a kind, and take over what nobody told.

        Args:
            others: jobs that were there when last told of, though they are not kept; those that
                are not there any more count as changed. For the kind of jobs only.

        Raises:
            KubeError: it cannot be listed.
        """
        before = self._versions(kind, namespace)  # what comes in while it is listed stays
        there: set[Key] = set()
        differing: set[Key] = set()
        for each in self.kube.each(kind, namespace, "" if kind is Kind.JOB else JOB_LABEL):
            place, job = _place(each), job_of(kind, each["metadata"])
            there.add(place)
            known = before.get(place, (None, None))[1]
            if job is not None and known != each["metadata"]["resourceVersion"]:
                self.put(kind, each)
                if not (kind is Kind.JOB and is_settled(each)):
                    differing.add(job)
        gone = {key for key in others if namespace in (None, key[0]) and key not in there}
        changed = gone | differing
        for place, (key, version) in before.items():
            if place not in there:
                self._drop(kind, key, place[1], version=version)
                changed.add(key)
        return Resynced(changed, gone)

    def forget_all(self, kind: Kind, namespace: str | None) -> set[Key]:
        """Nothing of a kind is there any more; the jobs that this concerns."""
        before = self._versions(kind, namespace)
        for place, (key, _) in before.items():
            self._drop(kind, key, place[1])
        return {key for key, _ in before.values()}

    # Kube

    def ping(self) -> None:
        try:
            self.kube.ping()
        except Unreachable:
            self.is_away = True
            raise
        self.is_away = False

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """An object: a job from memory, if it is there; anything else is asked for."""
        if kind is Kind.JOB:
            with self._lock:
                known = self._objects[kind].get((namespace, name), {}).get(name)
            if known is not None:
                return known
        found = self.kube.get(kind, namespace, name)
        if kind is Kind.JOB and found is not None:
            self.put(kind, found)
        return found

    def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> tuple[Manifest, ...]:
        """Objects: a job's clusters and pods from memory; anything else is asked for."""
        name = selector.removeprefix(f"{JOB_LABEL}=")
        if kind not in (Kind.CLUSTER, Kind.POD) or namespace is None or name == selector:
            return self.kube.list(kind, namespace, selector)
        with self._lock:
            return tuple(self._objects[kind].get((namespace, name), {}).values())

    def each(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> Iterator[Manifest]:
        return self.kube.each(kind, namespace, selector)

    def warnings(self, namespace: str, uid: str) -> tuple[str, ...]:
        return self.kube.warnings(namespace, uid)

    def create(self, manifest: Manifest) -> bool:
        return self.kube.create(manifest)

    def apply(self, manifest: Manifest) -> Manifest:
        return self._wrote(self.kube.apply(manifest))

    def apply_status(self, manifest: Manifest) -> Manifest:
        return self._wrote(self.kube.apply_status(manifest))

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        """Delete an object; one that nobody told to be gone is forgotten."""
        was_there = self.kube.delete(kind, namespace, name, uid)
        if not was_there and kind in WATCHED:
            self._forget(kind, namespace, name, uid)
        return was_there

    def forget_job(self, namespace: str, name: str) -> None:
        """Ask for a job the next time: what is known of it is not what is there."""
        self._drop(Kind.JOB, (namespace, name), name)

    def _wrote(self, written: Manifest) -> Manifest:
        """An answer may come later than the news that its object is gone."""
        kind = Kind.from_manifest(written)
        metadata = written["metadata"]
        ends = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        if ends:
            self.drop(kind, written)
        elif kind in WATCHED:
            self.put(kind, written)
        return written

    def _drop(
        self, kind: Kind, key: Key, name: str, uid: str | None = None, version: str | None = None
    ) -> None:
        with self._lock:
            held = self._objects[kind].get(key, {})
            known = held.get(name)
            if known is None:
                return
            metadata = known["metadata"]
            if uid not in (None, metadata.get("uid")):
                return  # another one of that name is there
            if version not in (None, metadata["resourceVersion"]):
                return  # it was told of since
            del held[name]
            if not held:
                self._objects[kind].pop(key, None)

    def _forget(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        with self._lock:
            keys = [
                key
                for key, held in self._objects[kind].items()
                if key[0] == namespace and name in held
            ]
        for key in keys:
            self._drop(kind, key, name, uid)

    def _versions(self, kind: Kind, namespace: str | None) -> dict[Key, tuple[Key, str]]:
        """Of all objects of a kind: by namespace and name, their job and version."""
        with self._lock:
            return {
                (key[0], name): (key, each["metadata"]["resourceVersion"])
                for key, held in self._objects[kind].items()
                for name, each in held.items()
                if namespace in (None, key[0])
            }


def is_settled(job: Manifest) -> bool:
    """True if a job has ended, has no cluster left, and its status is of its current manifest.

    Nothing happens to such a job until somebody changes it.
    """
    metadata, status = job["metadata"], job.get("status")
    if not isinstance(status, Mapping):
        return False
    return (
        status.get("phase") in (JobPhase.SUCCEEDED, JobPhase.FAILED)
        and status.get("observedGeneration") == metadata.get("generation")
        and "cluster" not in status
        and FINALIZER not in metadata.get("finalizers", ())
    )


def job_of(kind: Kind, metadata: Mapping[str, Any]) -> Key | None:
    """The job that an object is, or belongs to. None: to none."""
    name = metadata["name"] if kind is Kind.JOB else metadata.get("labels", {}).get(JOB_LABEL)
    return None if name is None else (metadata["namespace"], name)


def _place(found: Manifest) -> Key:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def _is_older(version: str, known: Mapping[str, Any]) -> bool:
    """Whether news are older than what is known under a name, or that it is gone.

    Versions in etcd are numbers that grow; where they are none, the last word counts.
    """
    numbers = [int(each) for each in (version, known["resourceVersion"]) if each.isdecimal()]
    return len(numbers) == 2 and numbers[0] < numbers[1]
