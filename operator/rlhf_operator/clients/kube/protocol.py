"""The interface to Kubernetes, and its errors. Objects are plain JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from rlhf_kube.kinds import Kind

Manifest = Mapping[str, Any]


class KubeError(Exception):
    """A request that Kubernetes refused, or could not answer."""

    reason: str
    """Reason for metrics, logs and conditions, one for each class."""


class Unreachable(KubeError):
    """No answer from the API server, or a temporary failure: try again later."""

    reason = "KubernetesUnreachable"


class Conflict(KubeError):
    """The object was replaced, or has changed since it was read."""

    reason = "KubernetesConflict"


class Forbidden(KubeError):
    """The operator's role, a quota or an admission policy forbids the request."""

    reason = "KubernetesForbidden"


class Invalid(KubeError):
    """The API server rejects the object, or does not serve its kind."""

    reason = "KubernetesInvalid"


class Kube(Protocol):
    """One cluster. Every method raises a KubeError."""

    def ping(self) -> None:
        """Make any request, to see if the API server answers."""
        ...

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object. None: it does not exist."""
        ...

    def list(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> tuple[Manifest, ...]:
        """Return the objects of a namespace, or of all, with these labels (`a=b,c`)."""
        ...

    def iterate(
        self, kind: Kind, namespace: str | None = None, selector: str = ""
    ) -> Iterator[Manifest]:
        """Yield the same objects, one page in memory at a time."""
        ...

    def warnings(self, namespace: str, uid: str) -> tuple[str, ...]:
        """Return the warning events of an object as "reason: message", oldest first."""
        ...

    def create(self, manifest: Manifest) -> bool:
        """Create an object; an unknown field is an error.

        Returns:
            False: an object of this name exists, and stays as it is.
        """
        ...

    def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply of the operator's fields; returns the complete object.

        metadata.uid and resourceVersion must match if they are set.
        """
        ...

    def apply_status(self, manifest: Manifest) -> Manifest:
        """Server-side apply of the status; returns the complete object.

        Only metadata.resourceVersion guards it: API servers ignore the uid here.
        """
        ...

    def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        """Delete the object with this uid, and in the background what it owns.

        Returns:
            False: it did not exist.
        """
        ...
