"""Kubernetes in memory, as far as the operator uses it; the tests in kube/ hold it to that."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Conflict, Invalid, KubeError, Manifest

Place = tuple[Kind, str, str]
Write = tuple[str, Kind]


@dataclass
class FakeKube:
    """Objects by kind, namespace and name."""

    objects: dict[Place, dict[str, Any]] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    """Every request that changed something, or tried to."""
    trouble: Callable[[str, Kind], KubeError | None] = field(default=lambda verb, kind: None)
    """What a request fails with, if it does; verbs are the protocol's methods."""
    changed: Callable[[str, Kind, Manifest], None] = field(default=lambda type, kind, object: None)
    """Told of every change, as a watch would be: ADDED, MODIFIED, DELETED."""
    now: Callable[[], datetime] = field(default=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    """When objects are made and deleted."""
    reads: int = 0
    _applied: dict[Place, dict[str, set[str]]] = field(default_factory=dict)
    """What apply said last, of each list or map that several people write: what it says no more
    goes."""
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _uids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def ping(self) -> None:
        self._try("ping", Kind.JOB)

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        self._try("get", kind)
        self.reads += 1
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> tuple[Manifest, ...]:
        self._try("list", kind)
        self.reads += 1
        wanted = [part.partition("=") for part in selector.split(",") if part]
        found = [
            each
            for (each_kind, each_namespace, _), each in sorted(
                self.objects.items(), key=lambda item: item[0][1:]
            )
            if each_kind is kind and namespace in (None, each_namespace)
        ]
        return tuple(copy.deepcopy(each) for each in found if _has_labels(each, wanted))

    def iterate(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> Iterator[Manifest]:
        return iter(self.list(kind, namespace, selector))

    def warnings(self, namespace: str, uid: str) -> tuple[str, ...]:
        self._try("warnings", Kind.EVENT)
        self.reads += 1
        found = [
            each
            for (kind, of, _), each in self.objects.items()
            if kind is Kind.EVENT and of == namespace and each["type"] == "Warning"
        ]
        about = [each for each in found if each["regarding"]["uid"] == uid]
        return tuple(f"{each['reason']}: {each['note']}" for each in about)

    def create(self, manifest: Manifest) -> bool:
        kind = Kind.from_manifest(manifest)
        self._try("create", kind)
        self.writes.append(("create", kind))
        made = copy.deepcopy(dict(manifest))
        metadata = made["metadata"] = dict(made["metadata"])
        if "name" not in metadata:
            metadata["name"] = f"{metadata.pop('generateName')}{next(self._uids):05d}"
        if (kind, metadata["namespace"], metadata["name"]) in self.objects:
            return False
        self._add(kind, made)
        return True

    def apply(self, manifest: Manifest) -> Manifest:
        kind = Kind.from_manifest(manifest)
        self._try("apply", kind)
        self.writes.append(("apply", kind))
        wanted = copy.deepcopy(dict(manifest))
        metadata = wanted["metadata"]
        place = (kind, metadata["namespace"], metadata["name"])
        found = self.objects.get(place)
        if found is None:
            if "uid" in metadata:
                raise Conflict("409: uid mismatch: the object is gone")
            self._merge(place, {}, metadata)
            return self._add(kind, wanted)
        _check(found, metadata, ("uid", "resourceVersion"))
        before = copy.deepcopy(found)
        own = copy.deepcopy(found["metadata"])
        self._merge(place, own, metadata)
        added = set(own.get("finalizers", ())) - set(found["metadata"].get("finalizers", ()))
        if added and "deletionTimestamp" in own:
            raise Invalid(f"422: no new finalizers can be added: {added} is being deleted")
        found["metadata"] = own
        for name in wanted.keys() - {"apiVersion", "kind", "metadata"}:
            if found.get(name) != wanted[name]:
                found[name] = wanted[name]
                own["generation"] = own.get("generation", 1) + (name == "spec")
        return self._changed(kind, before, found)

    def _merge(self, place: Place, own: dict[str, Any], said: Mapping[str, Any]) -> None:
        """Change an object's metadata as server-side apply does."""
        last = self._applied.get(place, {})
        self._applied[place] = {}
        for name in ("labels", "annotations"):
            new = said.get(name, {})
            kept = {
                key: own[name][key]
                for key in own.get(name, {})
                if key in new or key not in last.get(name, set())
            }
            _put(own, name, {**kept, **new})
            self._applied[place][name] = set(new)
        for name, plan_key in (("finalizers", str), ("ownerReferences", _uid)):
            new = {plan_key(each): each for each in said.get(name, ())}
            old = {plan_key(each): each for each in own.get(name, ())}
            kept = {key: old[key] for key in old if key not in last.get(name, set())}
            _put(own, name, list({**kept, **new}.values()))
            self._applied[place][name] = set(new)

    def apply_status(self, manifest: Manifest) -> Manifest:
        kind = Kind.from_manifest(manifest)
        self._try("apply_status", kind)
        self.writes.append(("apply_status", kind))
        metadata = manifest["metadata"]
        found = self.objects.get((kind, metadata["namespace"], metadata["name"]))
        if found is None:
            raise Conflict("404: not found")
        _check(found, metadata, ("resourceVersion",))
        before = copy.deepcopy(found)
        found["status"] = copy.deepcopy(manifest["status"])
        return self._changed(kind, before, found)

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        self._try("delete", kind)
        self.writes.append(("delete", kind))
        found = self.objects.get((kind, namespace, name))
        if found is None or found["metadata"]["uid"] != uid:
            return False
        self.remove(kind, namespace, name)
        return True

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object as anybody could; what it owns goes with it."""
        found = self.objects[kind, namespace, name]
        metadata = found["metadata"]
        if metadata.get("finalizers"):
            if "deletionTimestamp" not in metadata:
                before = copy.deepcopy(found)
                metadata["deletionTimestamp"] = self._time()
                self._changed(kind, before, found)
            return
        del self.objects[kind, namespace, name]
        self._applied.pop((kind, namespace, name), None)
        self.changed("DELETED", kind, found)
        owned = [
            place
            for place, each in self.objects.items()
            if any(
                owner["uid"] == metadata["uid"]
                for owner in each["metadata"].get("ownerReferences", ())
            )
        ]
        for place in owned:
            if place in self.objects:
                self.remove(*place)

    def edit(
        self, kind: Kind, namespace: str, name: str, change: Callable[[dict[str, Any]], None]
    ) -> None:
        """Change an object as somebody else would."""
        found = self.objects[kind, namespace, name]
        before = copy.deepcopy(found)
        change(found)
        if found.get("spec") != before.get("spec"):
            found["metadata"]["generation"] += 1
        self._changed(kind, before, found)

    def _add(self, kind: Kind, made: dict[str, Any]) -> Manifest:
        metadata = made["metadata"]
        metadata |= {
            "uid": f"uid-{next(self._uids):08d}",
            "resourceVersion": str(next(self._versions)),
            "generation": 1,
            "creationTimestamp": self._time(),
        }
        self.objects[kind, metadata["namespace"], metadata["name"]] = made
        self.changed("ADDED", kind, made)
        return copy.deepcopy(made)

    def _changed(self, kind: Kind, before: Manifest, found: dict[str, Any]) -> Manifest:
        metadata = found["metadata"]
        if found != before:
            metadata["resourceVersion"] = str(next(self._versions))
            if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
                self.remove(kind, metadata["namespace"], metadata["name"])
            else:
                self.changed("MODIFIED", kind, found)
        return copy.deepcopy(found)

    def _time(self) -> str:
        """To the second, as Kubernetes writes it."""
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _try(self, verb: str, kind: Kind) -> None:
        error = self.trouble(verb, kind)
        if error is not None:
            raise error


def _put(own: dict[str, Any], name: str, value: Any) -> None:
    """What is empty is not shown."""
    own.pop(name, None)
    if value:
        own[name] = value


def _uid(owner: Mapping[str, Any]) -> str:
    return str(owner["uid"])


def _has_labels(object: Manifest, wanted: Sequence[tuple[str, str, str]]) -> bool:
    labels = object["metadata"].get("labels", {})
    return all(
        labels.get(name) == value if sign else name in labels for name, sign, value in wanted
    )


def _check(found: Manifest, metadata: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name in metadata and metadata[name] != found["metadata"][name]:
            raise Conflict(f"409: {name} mismatch")
