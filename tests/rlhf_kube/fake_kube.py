"""Kubernetes in memory; test_contract.py proves that it answers as the real one.

Commands in containers run as real processes of this machine, on folders that stand for theirs.
"""

from __future__ import annotations

import copy
import itertools
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_kube.errors import (
    CommandFailed,
    Conflict,
    FieldsConflict,
    KubeError,
    NotFound,
    StreamBroken,
)
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest, Snapshot, WatchEvent

from .fields import Leaf, leaves, matches_fields, matches_labels, merged, remove_leaf, set_leaf

Document = dict[str, Any]
Address = tuple[Kind, str, str]
MANAGER = "rlhf"


@dataclass
class FakeKube:
    """Implements `rlhf_kube.protocol.Cluster`: objects by kind, namespace and name."""

    namespace: str = "team"
    objects: dict[Address, Document] = field(default_factory=dict)
    writes: list[tuple[str, Kind]] = field(default_factory=list)
    """Every request that changed something, or tried to."""
    deleted: list[str] = field(default_factory=list)
    """Objects of successful deletions, such as pods/a."""
    reads: int = 0
    trouble: Callable[[str, Kind], KubeError | None] = field(default=lambda verb, kind: None)
    """The error of a request, if it fails; verbs are the protocol's methods."""
    changed: Callable[[str, Kind, Manifest], None] = field(default=lambda type, kind, object: None)
    """Called with every change, as a watch would be: ADDED, MODIFIED, DELETED."""
    now: Callable[[], datetime] = field(default=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    """Time of creations and deletions."""
    server_version: tuple[int, int] = (1, 34)
    script: deque[Callable[[], object]] = field(default_factory=deque)
    """Next happenings, one whenever a watch has reported all changes."""
    kubelet: Callable[[Document], None] = field(default=lambda pod: None)
    """Changes a new pod."""
    folders: dict[str, dict[str, Path]] = field(default_factory=dict)
    """By pod and path in it, folders of this machine."""
    collects_at_once: bool = True
    """True if the garbage collector deletes what an object owns together with the object."""
    breaks: deque[int] = field(default_factory=deque)
    """Numbers of bytes after which the connections of the next commands break."""
    _applied: dict[Address, set[Leaf]] = field(default_factory=dict)
    """Fields of the last apply: those that the next one leaves out are removed."""
    _others: dict[Address, set[Leaf]] = field(default_factory=dict)
    """Fields that were set otherwise than by apply."""
    _history: list[tuple[int, Kind, WatchEvent]] = field(default_factory=list)
    _version: int = 0
    _uids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def version(self) -> tuple[int, int]:
        self._try("version", Kind.JOB)
        return self.server_version

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        self._try("get", kind)
        self.reads += 1
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    def list(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        self._try("list", kind)
        self.reads += 1
        return tuple(
            copy.deepcopy(item)
            for item in self._of_kind(kind)
            if namespace in (None, item["metadata"]["namespace"])
            and matches_labels(item, labels)
            and matches_fields(item, fields)
        )

    def iterate(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> Iterator[Manifest]:
        return iter(self.list(kind, namespace, labels, fields))

    def snapshot(self, kind: Kind, namespace: str | None, fields: str = "") -> Snapshot:
        return Snapshot(self.list(kind, namespace, "", fields), str(self._version))

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[WatchEvent]:
        seen = int(version)
        while True:
            for number, changed_kind, event in self._history[:]:
                space = event.object["metadata"]["namespace"]
                is_watched = changed_kind is kind and namespace in (None, space)
                if number > seen and is_watched and matches_fields(event.object, fields):
                    yield event
                seen = max(seen, number)
            assert self.script, "the watch waits for ever"
            self.script.popleft()()

    def create(self, manifest: Manifest) -> bool:
        kind = Kind.from_manifest(manifest)
        self._try("create", kind)
        self.writes.append(("create", kind))
        made = copy.deepcopy(dict(manifest))
        metadata = made["metadata"] = dict(made["metadata"])
        if "name" not in metadata:
            metadata["name"] = f"{metadata.pop('generateName')}{next(self._uids):05d}"
        address = (kind, metadata["namespace"], metadata["name"])
        if address in self.objects:
            return False
        self._others[address] = set(leaves(made))
        if kind is Kind.POD:
            self.kubelet(made)
        self._complete(kind, made)
        self._add(address, made)
        return True

    def apply(self, manifest: Manifest, *, force: bool = False, dry_run: bool = False) -> Manifest:
        kind = Kind.from_manifest(manifest)
        self._try("apply", kind)
        self.writes.append(("apply", kind))
        desired, metadata = copy.deepcopy(dict(manifest)), manifest["metadata"]
        address = (kind, metadata["namespace"], metadata["name"])
        stored = self.objects.get(address)
        if stored is None:
            if "uid" in metadata:
                raise Conflict("uid mismatch: the object is gone")
            self._complete(kind, desired)
            if not dry_run:
                self._applied[address] = set(leaves(desired))
                self._add(address, desired)
            return copy.deepcopy(desired)
        _check(stored, metadata, ("uid", "resourceVersion"))
        after = self._apply(address, stored, leaves(desired), force)
        if dry_run:
            return after
        self._applied[address] = set(leaves(desired))
        self._others.get(address, set()).difference_update(self._applied[address])
        return self._replace(address, after)

    def apply_status(self, manifest: Manifest) -> Manifest:
        kind = Kind.from_manifest(manifest)
        self._try("apply_status", kind)
        self.writes.append(("apply_status", kind))
        metadata = manifest["metadata"]
        address = (kind, metadata["namespace"], metadata["name"])
        stored = self._stored(address)
        _check(stored, metadata, ("resourceVersion",))
        return self._replace(address, {**stored, "status": copy.deepcopy(manifest["status"])})

    def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest) -> Manifest:
        self._try("merge", kind)
        self.writes.append(("merge", kind))
        address = (kind, namespace, name)
        after = merged(self._stored(address), patch)
        self._others.setdefault(address, set()).update(leaves(patch))
        return self._replace(address, after)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        self._try("delete", kind)
        self.writes.append(("delete", kind))
        stored = self.objects.get((kind, namespace, name))
        if stored is None or uid not in (None, stored["metadata"]["uid"]):
            return False
        self.remove(kind, namespace, name)
        self.deleted.append(f"{kind.plural}/{name}")
        return True

    def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Iterator[bytes]:
        self._stored((Kind.POD, namespace, pod))
        folders = self.folders.get(pod, {})
        words = [str(folders.get(word, word)) for word in command]
        done = subprocess.run(words, capture_output=True)
        if self.breaks:
            yield done.stdout[: self.breaks.popleft()]
            raise StreamBroken("the connection broke")
        yield done.stdout
        if done.returncode != 0:
            raise CommandFailed(done.returncode, done.stderr.decode())

    # Changes by others than the client

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object as anybody could."""
        address = (kind, namespace, name)
        stored = self.objects[address]
        metadata = stored["metadata"]
        if metadata.get("finalizers"):
            if "deletionTimestamp" not in metadata:
                metadata = {**metadata, "deletionTimestamp": self._time()}
                self._replace(address, {**stored, "metadata": metadata})
            return
        for state in (self.objects, self._applied, self._others):
            state.pop(address, None)
        self._report("DELETED", kind, stored)
        if self.collects_at_once:
            self.collect_garbage()

    def collect_garbage(self) -> None:
        """Delete the objects that have owners of which none exists, and what these own."""
        while address := self._find_garbage():
            self.remove(*address)

    def _find_garbage(self) -> Address | None:
        uids = {item["metadata"]["uid"] for item in self.objects.values()}
        for address, item in self.objects.items():
            metadata = item["metadata"]
            owners = {owner["uid"] for owner in metadata.get("ownerReferences", ())}
            if owners and not owners & uids and "deletionTimestamp" not in metadata:
                return address
        return None

    def edit(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Document], None]
    ) -> None:
        """Change an object as somebody else would."""
        address = (kind, namespace, name)
        after = copy.deepcopy(self.objects[address])
        before = leaves(after)
        change(after)
        changed = {leaf for leaf, value in leaves(after).items() if before.get(leaf) != value}
        self._others.setdefault(address, set()).update(changed)
        self._replace(address, after)

    def set_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        """Replace the status, as an operator does."""
        self.edit(kind, namespace, name, lambda object: object.update(status=dict(status)))

    def _apply(
        self, address: Address, stored: Document, desired: Mapping[Leaf, Any], force: bool
    ) -> Document:
        """Return an object after a server-side apply of fields."""
        others, current = self._others.get(address, set()), leaves(stored)
        conflicts = [
            leaf for leaf in desired if leaf in others and current.get(leaf) != desired[leaf]
        ]
        if conflicts and not force:
            raise FieldsConflict(f"others have set {conflicts}", frozenset({MANAGER}))
        after = copy.deepcopy(stored)
        for leaf in self._applied.get(address, set()) - desired.keys() - others:
            remove_leaf(after, leaf)
        for leaf, value in desired.items():
            set_leaf(after, leaf, value)
        return after

    def _of_kind(self, kind: Kind) -> Iterator[Manifest]:
        for address, item in sorted(self.objects.items(), key=lambda pair: pair[0][1:]):
            if address[0] is kind:
                yield item
            elif (kind, address[0]) == (Kind.CORE_EVENT, Kind.EVENT):
                # Both APIs have the same events.
                words = {
                    "involvedObject": item["regarding"],
                    "message": item["note"],
                    "reportingComponent": item.get("reportingController", ""),
                }
                yield {**item, **kind.header, **words}

    def _stored(self, address: Address) -> Document:
        if address not in self.objects:
            raise NotFound(f'{address[0].plural} "{address[2]}" not found')
        return self.objects[address]

    def _complete(self, kind: Kind, made: Document) -> None:
        made["metadata"] |= {
            "uid": f"uid-{next(self._uids):08d}",
            "resourceVersion": self._next_version(),
            "generation": 1,
            "creationTimestamp": self._time(),
        }
        if kind is Kind.JOB:
            made.setdefault("status", {"phase": "Pending", "observedGeneration": -1})

    def _add(self, address: Address, made: Document) -> None:
        self.objects[address] = made
        self._report("ADDED", address[0], made)

    def _replace(self, address: Address, after: Document) -> Manifest:
        """Store an object after a change, and return it."""
        before, metadata = self.objects[address], after["metadata"]
        if after == before:
            return copy.deepcopy(after)
        generation = metadata.get("generation", 1) + (after.get("spec") != before.get("spec"))
        version = {"resourceVersion": self._next_version(), "generation": generation}
        # In place: tests hold on to objects.
        stored = {**after, "metadata": {**metadata, **version}}
        before.clear()
        before.update(stored)
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self.remove(*address)
        else:
            self._report("MODIFIED", address[0], before)
        return copy.deepcopy(stored)

    def _report(self, type: str, kind: Kind, object: Document) -> None:
        is_deletion = type == "DELETED"
        if kind is Kind.JOB:
            last = copy.deepcopy(object)
            if is_deletion:
                last["metadata"]["resourceVersion"] = self._next_version()
            self._history.append((self._version, kind, WatchEvent(last, is_deletion)))
        self.changed(type, kind, object)

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    def _time(self) -> str:
        """To the second, as Kubernetes writes it."""
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _try(self, verb: str, kind: Kind) -> None:
        error = self.trouble(verb, kind)
        if error is not None:
            raise error


def _check(stored: Manifest, metadata: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name in metadata and metadata[name] != stored["metadata"][name]:
            raise Conflict(f"{name} mismatch")
