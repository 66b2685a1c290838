"""The folders on claims that jobs name: an index of all jobs, also of those that have ended.

A job's folder stays its own as long as the job exists. Without the index, the check of one job
would list all jobs of its namespace.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlhf_api.on_cluster import MANAGED_BY
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.status import JobPhase
from rlhf_kube.protocol import Manifest

if TYPE_CHECKING:
    from rlhf_operator.clients.cached_kube import Key

OF_ANOTHER_JOB = "FolderOfAnotherJob"
"""Reason of a job whose folder belongs to another one."""


@dataclass(frozen=True)
class FolderUse:
    """A job, and the folder of a claim that it names."""

    namespace: str
    job: str
    uid: str
    claim: str
    folder: str
    """Normalized: no empty parts, no slash first or last. Empty: the whole volume."""
    created: str
    """Time of creation, as Kubernetes writes it: sorts as text."""
    has_begun: bool
    """True if a cluster was created for the job with this folder."""

    @property
    def key(self) -> Key:
        return self.namespace, self.job

    @property
    def parts(self) -> list[str]:
        """Names of the folder and of those around it, the outermost first."""
        return self.folder.split("/") if self.folder else []

    @property
    def outermost(self) -> str:
        """The folder at the top of the volume. Empty: the whole volume."""
        return self.folder.partition("/")[0]

    def overlaps(self, other: FolderUse) -> bool:
        """True if one of the folders is the other one, or inside of it."""
        if (self.namespace, self.claim) != (other.namespace, other.claim):
            return False
        pairs = zip(self.parts, other.parts, strict=False)
        return all(mine == others for mine, others in pairs)

    def precedes(self, other: FolderUse) -> bool:
        """True if this job, rather than the other one, owns a folder that both name."""
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[bool, str, str]:
        return not self.has_begun, self.created, self.job


@dataclass
class RunFolders:
    """The folders that jobs name. Its methods may be called from any thread."""

    default: CheckpointStorage | None = None
    """The chart's storage, for jobs that name none."""
    defaults: Mapping[str, CheckpointStorage | None] = field(default_factory=dict)
    """The same for jobs of some namespaces."""
    _uses: dict[Key, FolderUse] = field(default_factory=dict)
    _by_claim: dict[tuple[str, str], dict[str, dict[Key, FolderUse]]] = field(default_factory=dict)
    """By namespace and claim, by the outermost folder, by job."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, job: Manifest) -> None:
        """Store what a job names, instead of what it named before."""
        metadata = job["metadata"]
        use = folder_use(job, self._default(job))
        with self._lock:
            self._remove((metadata["namespace"], metadata["name"]))
            if use is not None:
                self._uses[use.key] = use
                folders = self._by_claim.setdefault((use.namespace, use.claim), {})
                folders.setdefault(use.outermost, {})[use.key] = use

    def drop(self, key: Key, uid: str | None = None) -> None:
        """Remove a deleted job, if its uid is as expected."""
        with self._lock:
            use = self._uses.get(key)
            if use is not None and uid in (None, use.uid):
                self._remove(key)

    def keys(self, namespace: str | None) -> set[Key]:
        """Return the jobs of a namespace; None: of all."""
        with self._lock:
            return {key for key in self._uses if namespace in (None, key[0])}

    def owner(self, key: Key) -> str | None:
        """Return the job that owns the folder of another job that has not begun.

        None: no other job does, or the job has begun in its folder.
        """
        with self._lock:
            use = self._uses.get(key)
        if use is None or use.has_begun:
            return None
        owners = [other for other in self._overlapping(use) if other.precedes(use)]
        return min(owners, key=lambda other: other._rank).job if owners else None

    def overlapping(self, job: Manifest) -> set[Key]:
        """Return the other jobs whose folders overlap with a job's."""
        use = folder_use(job, self._default(job))
        return set() if use is None else {other.key for other in self._overlapping(use)}

    def _default(self, job: Manifest) -> CheckpointStorage | None:
        return self.defaults.get(job["metadata"]["namespace"], self.default)

    def _overlapping(self, use: FolderUse) -> list[FolderUse]:
        with self._lock:
            folders = self._by_claim.get((use.namespace, use.claim), {})
            # Only in these: usually each job has a folder of its own name.
            near = (use.outermost, "") if use.outermost else tuple(folders)
            others = [other for name in near for other in folders.get(name, {}).values()]
        return [other for other in others if other.key != use.key and other.overlaps(use)]

    def _remove(self, key: Key) -> None:
        use = self._uses.pop(key, None)
        if use is None:
            return
        folders = self._by_claim[use.namespace, use.claim]
        del folders[use.outermost][key]
        if not folders[use.outermost]:
            del folders[use.outermost]
        if not folders:
            del self._by_claim[use.namespace, use.claim]


def folder_use(job: Manifest, default: CheckpointStorage | None) -> FolderUse | None:
    """Return the folder that a job names. None: none on a claim, or the job never owns it.

    Args:
        job: as Kubernetes has it; no field is trusted.
        default: the chart's storage.
    """
    metadata, spec, status = job["metadata"], _map(job.get("spec")), _map(job.get("status"))
    if spec.get("managedBy") not in (None, MANAGED_BY):
        return None
    # A driver has refused it: its folder belongs to a job that may not exist at the moment.
    if (status.get("phase"), status.get("reason")) == (JobPhase.FAILED, OF_ANOTHER_JOB):
        return None
    claim = _claim(spec, status, default)
    name, folder = claim.get("claimName"), claim.get("subPath") or metadata["name"]
    if not isinstance(name, str) or not isinstance(folder, str):
        return None
    folder = _normalize(folder)
    return FolderUse(
        metadata["namespace"],
        metadata["name"],
        metadata.get("uid", ""),
        name,
        folder,
        metadata.get("creationTimestamp", ""),
        # The address of an earlier cluster's folder, before an edit, is another one.
        has_begun=_used_folder(status) == (name, folder),
    )


def _claim(
    spec: Mapping[str, Any], status: Mapping[str, Any], default: CheckpointStorage | None
) -> Mapping[str, Any]:
    """Return the claim: the spec's, else that of the job's pinned defaults, else the chart's."""
    chart = {} if default is None else default.model_dump(mode="json", by_alias=True)
    own, pinned = _map(spec.get("checkpoint")), _map(status.get("defaults"))
    candidates: Iterable[Any] = (own.get("storage"), pinned.get("storage"), chart)
    storage: Mapping[str, Any] = next(filter(None, map(_map, candidates)), {})
    return _map(storage.get("persistentVolumeClaim"))


def _used_folder(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return claim and folder of the job's last cluster. None: it had none."""
    address = str(_map(status.get("artifacts")).get("checkpoints", ""))
    scheme, _, place = address.rpartition("/")[0].partition("://")
    claim, _, folder = place.partition("/")
    return (claim, _normalize(folder)) if scheme == "pvc" else None


def _normalize(folder: str) -> str:
    path = posixpath.normpath(folder)
    return "" if path == "." else path


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
