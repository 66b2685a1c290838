"""A cluster in memory, which passes the same contract tests as the real one.

Commands in containers run as real processes of this machine, on folders that stand for theirs.
"""

from __future__ import annotations

import copy
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from rlhf_cli.cluster.client import CommandFailed, Listing, Object, StreamBroken, WatchEvent
from rlhf_cli.cluster.errors import FieldsConflict, ObjectNotFound, ObjectRefused
from rlhf_kube.kinds import Kind

Document = dict[str, Any]
Key = tuple[str, str, str]
Leaf = tuple[str, ...]


class FakeCluster:
    """See `rlhf_cli.cluster.client.Cluster`."""

    def __init__(self, namespace: str = "default") -> None:
        self.namespace = namespace
        self.server_version = (1, 34)
        self.script: deque[Callable[[], None]] = deque()
        """What happens next, one by one, whenever a watch has told all that has happened."""
        self.kubelet: Callable[[Document], None] = lambda pod: None
        """What becomes of a new pod."""
        self.folders: dict[str, dict[str, Path]] = {}
        """For each pod what lies where in it."""
        self.breaks: deque[int] = deque()
        """After how many bytes the connections of the next commands break."""
        self.deleted: list[str] = []
        self._objects: dict[Key, Document] = {}
        self._owned: dict[Key, dict[Leaf, Any]] = {}
        """Values that were set otherwise than by apply."""
        self._changes: list[tuple[int, str, WatchEvent]] = []
        self._version = 0

    def version(self) -> tuple[int, int]:
        return self.server_version

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return copy.deepcopy(self._stored((kind.plural, namespace, name)))

    def list(
        self, kind: Kind, namespace: str | None, labels: str = "", fields: str = ""
    ) -> Listing:
        found = [
            copy.deepcopy(each)
            for (plural, space, _), each in sorted(self._objects.items())
            if plural == kind.plural
            and namespace in (None, space)
            and _matches(each["metadata"].get("labels") or {}, labels)
            and _matches_fields(each, fields)
        ]
        return Listing(tuple(found), str(self._version))

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[WatchEvent]:
        seen = int(version)
        while True:
            for number, plural, change in list(self._changes):
                place = change.object["metadata"]["namespace"]
                fits = plural == kind.plural and namespace in (None, place)
                if number > seen and fits and _matches_fields(change.object, fields):
                    yield change
                seen = max(seen, number)
            assert self.script, "the command waits for ever"
            self.script.popleft()()

    def create(self, kind: Kind, object: Object, *, dry_run: bool = False) -> Object:
        key = _key(kind, object)
        if key in self._objects:
            raise ObjectRefused(f"cannot create: {key[2]} already exists")
        made = self._made(kind, object)
        if not dry_run:
            self._owned[key] = dict(_leaves(made.get("spec") or {}))
            if kind.kind == "Pod":
                self.kubelet(made)
            self._store(key, made)
        return copy.deepcopy(made)

    def apply(
        self, kind: Kind, object: Object, *, dry_run: bool = False, force: bool = False
    ) -> Object:
        key = _key(kind, object)
        before = self._objects.get(key)
        owned = self._owned.get(key, {})
        wanted = dict(_leaves(object.get("spec") or {}))
        others = [leaf for leaf in wanted if leaf in owned and owned[leaf] != wanted[leaf]]
        if others and not force:
            raise FieldsConflict(f"others have set {others}", frozenset({"rlhf"}))
        after = _merged(before, object) if before else self._made(kind, object)
        if not dry_run:
            self._owned[key] = {leaf: owned[leaf] for leaf in owned if leaf not in others}
            if after != before:
                self._store(key, _grown(before, after))
        return copy.deepcopy(self._objects.get(key, after))

    def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        key = (kind.plural, namespace, name)
        before = self._stored(key)
        self._owned.setdefault(key, {}).update(_leaves(patch.get("spec") or {}))
        self._store(key, _grown(before, _merged(before, patch)))
        return self.get(kind, namespace, name)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        key = (kind.plural, namespace, name)
        found = self._stored(key)
        if uid not in (None, found["metadata"]["uid"]):
            raise ObjectRefused("the uid is another one")
        del self._objects[key]
        self.deleted.append(f"{kind.plural}/{name}")
        self._tell(kind.plural, found, True)

    def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Iterator[bytes]:
        self._stored(("pods", namespace, pod))
        folders = self.folders.get(pod, {})
        words = [str(folders.get(word, word)) for word in command]
        done = subprocess.run(words, capture_output=True)
        if self.breaks:
            yield done.stdout[: self.breaks.popleft()]
            raise StreamBroken("the connection broke")
        yield done.stdout
        if done.returncode != 0:
            raise CommandFailed(done.returncode, done.stderr.decode())

    def set_status(self, kind: Kind, namespace: str, name: str, status: Object) -> None:
        """What an operator does: replace the status, and nothing else."""
        key = (kind.plural, namespace, name)
        self._store(key, self._stored(key) | {"status": dict(status)})

    def _stored(self, key: Key) -> Document:
        if key not in self._objects:
            raise ObjectNotFound(f'{key[0]} "{key[2]}" not found')
        return self._objects[key]

    def _made(self, kind: Kind, object: Object) -> Document:
        made = copy.deepcopy(dict(object))
        made["metadata"] |= {
            "uid": str(uuid4()),
            "generation": 1,
            "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if kind == Kind.JOB:
            made.setdefault("status", {"phase": "Pending", "observedGeneration": -1})
        return made

    def _store(self, key: Key, document: Document) -> None:
        self._version += 1
        document = copy.deepcopy(document)
        document["metadata"]["resourceVersion"] = str(self._version)
        self._objects[key] = document
        self._changes.append((self._version, key[0], WatchEvent(copy.deepcopy(document), False)))

    def _tell(self, plural: str, document: Document, is_deletion: bool) -> None:
        self._version += 1
        last = copy.deepcopy(document)
        last["metadata"]["resourceVersion"] = str(self._version)
        self._changes.append((self._version, plural, WatchEvent(last, is_deletion)))


def _key(kind: Kind, object: Object) -> Key:
    return kind.plural, object["metadata"]["namespace"], object["metadata"]["name"]


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Document:
    result = copy.deepcopy(dict(old))
    for name, value in new.items():
        below = result.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            result[name] = _merged(below, value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def _grown(before: Mapping[str, Any] | None, after: Document) -> Document:
    if before is not None and before.get("spec") != after.get("spec"):
        after["metadata"]["generation"] = before["metadata"]["generation"] + 1
    return after


def _leaves(node: Any, path: Leaf = ()) -> Iterator[tuple[Leaf, Any]]:
    if isinstance(node, Mapping) and node:
        for name, value in node.items():
            yield from _leaves(value, (*path, name))
    else:
        yield path, node


def _matches(labels: Mapping[str, str], selector: str) -> bool:
    pairs = (each.partition("=")[::2] for each in selector.split(",") if each)
    return all(labels.get(name) == value for name, value in pairs)


def _matches_fields(document: Object, selector: str) -> bool:
    for name, _, value in (each.partition("=") for each in selector.split(",") if each):
        node: Any = document
        for part in name.split("."):
            node = node.get(part, {})
        if node != value:
            return False
    return True
