"""What the operator wants of Kubernetes; the one seam to it. Objects are plain JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from rlhf_kube.kinds import Kind

Manifest = Mapping[str, Any]


class KubeError(Exception):
    """Kubernetes refused a request, or could not answer it."""

    reason: str
    """A word for it, of each kind of error its own."""


class Unreachable(KubeError):
    """The API server did not answer, or has trouble of its own: try again later."""

    reason = "KubernetesUnreachable"


class Conflict(KubeError):
    """The object is another one now, or has changed since it was read."""

    reason = "KubernetesConflict"


class Forbidden(KubeError):
    """The operator may not do this: its role, a quota or an admission policy is against it."""

    reason = "KubernetesForbidden"


class Invalid(KubeError):
    """The API server does not take the object, or does not know its kind."""

    reason = "KubernetesInvalid"


class Kube(Protocol):
    """One cluster. Every method raises a KubeError."""

    def ping(self) -> None:
        """Anything at all that shows that it answers."""
        ...

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """An object. None: there is none."""
        ...

    def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> tuple[Manifest, ...]:
        """Objects of a namespace, or of all, with these labels (`a=b,c`)."""
        ...

    def each(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> Iterator[Manifest]:
        """The same one by one: of many, only a part is in memory at a time."""
        ...

    def warnings(self, namespace: str, uid: str) -> tuple[str, ...]:
        """What was told of an object that does not go well: reason and message, oldest first."""
        ...

    def create(self, manifest: Manifest) -> bool:
        """Make an object. False: one of that name is there, and stays as it is. A field that its
        kind does not have is an error."""
        ...

    def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply of the operator's fields; metadata.uid and resourceVersion must match
        if they are given. Returns the whole object."""
        ...

    def apply_status(self, manifest: Manifest) -> Manifest:
        """The same for its status. Only metadata.resourceVersion guards it: API servers do not
        look at the uid here."""
        ...

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        """Delete this very object, and what it owns afterwards; whether it was there."""
        ...
