"""Kubernetes with a cache of jobs, their clusters and their pods, which watches keep up to date.

A watch loses nothing while it is open. When it is opened again, deletions in between are not
reported, so all objects are listed from time to time and compared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_api.status import JobPhase
from rlhf_kube.errors import NotInstalled, Unreachable
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube, Manifest
from rlhf_operator.clients.run_folders import RunFolders
from rlhf_operator.clients.trimming import trimmed

Key = tuple[str, str]
"""Namespace and name of a job."""

MAX_DELETED = 4096
"""Deleted objects that are remembered, since answers and lists may arrive after the deletion."""
WATCHED = (Kind.JOB, Kind.CLUSTER, Kind.POD)


@dataclass(frozen=True)
class ResyncResult:
    """Changes that a list has shown and no watch had reported."""

    changed: set[Key]
    """Jobs whose objects differ."""
    deleted: set[Key]
    """Jobs in `expected` that no longer exist."""


@dataclass
class CachedKube:
    """A cluster with some kinds in memory. Its methods may be called from any thread.

    A job that has ended and has no cluster left is not kept: nothing happens to it any more, and a
    request for it is passed on.
    """

    kube: Kube
    folders: RunFolders = field(default_factory=RunFolders)
    """Folders that jobs name, also those of jobs that are not kept."""
    is_away: bool = False
    """True if Kubernetes did not answer the last request for its version."""
    _objects: dict[Kind, dict[Key, dict[str, Manifest]]] = field(
        default_factory=lambda: {kind: {} for kind in WATCHED}
    )
    """By kind, by job, by the object's own name."""
    _deleted: OrderedDict[str | None, str] = field(default_factory=OrderedDict)
    """Recently deleted objects: resourceVersion at the deletion, by uid."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # Events of watches

    def put(self, kind: Kind, manifest: Manifest) -> bool:
        """Store an object, unless a newer version of it, or its deletion, is known.

        Returns:
            True if this version was not stored before.
        """
        metadata = {**manifest["metadata"]}
        metadata.pop("managedFields", None)  # large, and never used
        key = job_key(kind, metadata)
        if key is None:
            return False
        with self._lock:
            # Answers of writes and events of watches arrive in any order.
            cached = self._objects[kind].get(key, {}).get(metadata["name"])
            if cached is not None and _is_older(metadata["resourceVersion"], cached["metadata"]):
                return False
            deletion = self._deleted.get(metadata.get("uid"))
            if deletion is not None and not _is_older(deletion, metadata):
                return False
            if kind is Kind.JOB:
                self.folders.put(manifest)
                if is_settled(manifest):
                    self._objects[kind].pop(key, None)
                    return False
            objects = self._objects[kind].setdefault(key, {})
            objects[metadata["name"]] = {**trimmed(kind, manifest), "metadata": metadata}
            return (
                cached is None
                or cached["metadata"]["resourceVersion"] != metadata["resourceVersion"]
            )

    def drop(self, kind: Kind, manifest: Manifest) -> None:
        """Remove an object that was deleted, or has lost the job's label."""
        metadata = manifest["metadata"]
        key = job_key(kind, metadata)
        with self._lock:
            self._deleted[metadata.get("uid")] = metadata["resourceVersion"]
            if len(self._deleted) > MAX_DELETED:
                self._deleted.popitem(last=False)
        if key is not None:
            self._remove(kind, key, metadata["name"], metadata.get("uid"))
        if kind is Kind.JOB and key is not None:
            self.folders.drop(key, metadata.get("uid"))

    def resync(
        self, kind: Kind, namespace: str | None, expected: Iterable[Key] = ()
    ) -> ResyncResult:
        """List a kind and correct the cache.

        Args:
            expected: jobs that existed when last reported, kept or not; a missing one counts as
                changed. For the kind of jobs only.

        Raises:
            KubeError: it cannot be listed.
        """
        # Objects that watches report during the list are not in `before`, so they stay.
        before = self._versions(kind, namespace)
        named = self.folders.keys(namespace) if kind is Kind.JOB else set()
        present: set[Key] = set()
        differing: set[Key] = set()
        # Clusters and pods without the label belong to others.
        selector = "" if kind is Kind.JOB else JOB_LABEL
        for manifest in self.kube.iterate(kind, namespace, selector):
            metadata = manifest["metadata"]
            name, job = (metadata["namespace"], metadata["name"]), job_key(kind, metadata)
            present.add(name)
            version = before.get(name, (None, None))[1]
            if job is not None and version != metadata["resourceVersion"]:
                self.put(kind, manifest)
                if not (kind is Kind.JOB and is_settled(manifest)):
                    differing.add(job)
        deleted = {key for key in expected if namespace in (None, key[0]) and key not in present}
        changed = deleted | differing
        for name, (job, version) in before.items():
            if name not in present:
                self._remove(kind, job, name[1], version=version)
                changed.add(job)
        for job in named - present:
            self.folders.drop(job)
        return ResyncResult(changed, deleted)

    def forget_all(self, kind: Kind, namespace: str | None) -> set[Key]:
        """Remove all objects of a kind that is no longer served; return their jobs."""
        before = self._versions(kind, namespace)
        for name, (job, _) in before.items():
            self._remove(kind, job, name[1])
        return {job for job, _ in before.values()}

    # The protocol Kube

    def version(self) -> tuple[int, int]:
        """Return the API server's version, and note whether it answers."""
        try:
            version = self.kube.version()
        except Unreachable:
            self.is_away = True
            raise
        self.is_away = False
        return version

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object: a job from the cache if it is there, anything else by a request."""
        if kind is Kind.JOB:
            with self._lock:
                cached = self._objects[kind].get((namespace, name), {}).get(name)
            if cached is not None:
                return cached
        try:
            manifest = self.kube.get(kind, namespace, name)
        except NotInstalled:  # its objects were deleted with the kind
            return None
        if kind is Kind.JOB and manifest is not None:
            self.put(kind, manifest)
        elif kind is Kind.JOB:
            self.folders.drop((namespace, name))
        return manifest

    def list(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        """Return objects: a job's clusters and pods from the cache, others by a request.

        Those from the cache are trimmed.
        """
        name = labels.removeprefix(f"{JOB_LABEL}=")
        is_cached = kind in (Kind.CLUSTER, Kind.POD) and not fields
        if not is_cached or namespace is None or name == labels:
            return self.kube.list(kind, namespace, labels, fields)
        with self._lock:
            return tuple(self._objects[kind].get((namespace, name), {}).values())

    def iterate(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> Iterator[Manifest]:
        return self.kube.iterate(kind, namespace, labels, fields)

    def create(self, manifest: Manifest) -> bool:
        return self.kube.create(manifest)

    def apply(self, manifest: Manifest, *, force: bool = False, dry_run: bool = False) -> Manifest:
        applied = self.kube.apply(manifest, force=force, dry_run=dry_run)
        return applied if dry_run else self._store_answer(applied)

    def apply_status(self, manifest: Manifest) -> Manifest:
        return self._store_answer(self.kube.apply_status(manifest))

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Delete an object; one that did not exist any more is removed from the cache."""
        existed = self.kube.delete(kind, namespace, name, uid, grace_seconds)
        # Its deletion was missed: without this, every reconcile would delete it again.
        if not existed and kind in WATCHED:
            self._remove_by_name(kind, namespace, name, uid)
        return existed

    def forget_job(self, namespace: str, name: str) -> None:
        """Remove a job whose cached version has proved stale, so that it is read again."""
        self._remove(Kind.JOB, (namespace, name), name)

    def _store_answer(self, manifest: Manifest) -> Manifest:
        kind = Kind.from_manifest(manifest)
        if kind in WATCHED:
            self.put(kind, manifest)
        return manifest

    def _remove(
        self, kind: Kind, key: Key, name: str, uid: str | None = None, version: str | None = None
    ) -> None:
        """Remove an object, if its uid and version are as expected."""
        with self._lock:
            objects = self._objects[kind].get(key, {})
            cached = objects.get(name)
            if cached is None:
                return
            metadata = cached["metadata"]
            if uid not in (None, metadata.get("uid")):
                return  # another object has the name now
            if version not in (None, metadata["resourceVersion"]):
                return  # a watch has reported it since
            del objects[name]
            if not objects:
                self._objects[kind].pop(key, None)

    def _remove_by_name(self, kind: Kind, namespace: str, name: str, uid: str | None) -> None:
        with self._lock:
            keys = [
                key
                for key, objects in self._objects[kind].items()
                if key[0] == namespace and name in objects
            ]
        for key in keys:
            self._remove(kind, key, name, uid)

    def _versions(self, kind: Kind, namespace: str | None) -> dict[Key, tuple[Key, str]]:
        """Return the job and version of all objects of a kind, by namespace and name."""
        with self._lock:
            return {
                (key[0], name): (key, manifest["metadata"]["resourceVersion"])
                for key, objects in self._objects[kind].items()
                for name, manifest in objects.items()
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
    )


def job_key(kind: Kind, metadata: Mapping[str, Any]) -> Key | None:
    """Return the job that an object is, or belongs to by its label. None: no job."""
    name = metadata["name"] if kind is Kind.JOB else metadata.get("labels", {}).get(JOB_LABEL)
    return None if name is None else (metadata["namespace"], name)


def _is_older(version: str, cached: Mapping[str, Any]) -> bool:
    """True if a resourceVersion precedes the cached one.

    In etcd these are growing numbers. Any other version counts as newer.
    """
    versions = (version, cached["resourceVersion"])
    numbers = [int(text) for text in versions if text.isdecimal()]
    return len(numbers) == 2 and numbers[0] < numbers[1]
