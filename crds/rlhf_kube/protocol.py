"""The interface to Kubernetes. Objects are plain JSON; every method raises a KubeError."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_kube.kinds import Kind

Manifest = Mapping[str, Any]
"""An object as JSON."""


@dataclass(frozen=True)
class Caller:
    """The program that makes the requests."""

    name: str
    """User agent, and field manager of server-side apply."""
    subject: str
    """In texts of errors, such as `you`."""
    answer_seconds: float
    """Longest silence of the API server."""
    busy_seconds: float = 0.0
    """Time for which a request is repeated while a busy API server puts it off. 0: it is not."""


class Kube(Protocol):
    """The objects of a cluster."""

    def version(self) -> tuple[int, int]:
        """Return the API server's version, such as (1, 34)."""
        ...

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object. None: it does not exist, or no API server serves its kind.

        Raises:
            NotInstalled: the API server does not serve RLHFJobs.
        """
        ...

    def iterate(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> Iterator[Manifest]:
        """Yield the objects that match the selectors (`a=b,c`), one page in memory at a time.

        Args:
            namespace: None: all of them.
        """
        ...

    def list(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        """Return the same objects."""
        ...

    def create(self, manifest: Manifest) -> bool:
        """Create an object; an unknown field is an error.

        Returns:
            False: an object of this name exists, and stays as it is.
        """
        ...

    def apply(self, manifest: Manifest, *, force: bool = False, dry_run: bool = False) -> Manifest:
        """Create or change an object by server-side apply; return the complete object.

        metadata.uid and resourceVersion must match if they are set; another one is a Conflict.

        Args:
            force: take over fields of other managers; otherwise they are a FieldsConflict.
            dry_run: validate only; nothing is stored.
        """
        ...

    def apply_status(self, manifest: Manifest) -> Manifest:
        """Server-side apply of the status; return the complete object.

        Only metadata.resourceVersion guards it: API servers ignore the uid here.
        """
        ...

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Start to delete an object, and in the background what it owns.

        Args:
            uid: the object's; None: whatever has the name.
            grace_seconds: of a pod; None: its own.

        Returns:
            False: there is no such object.
        """
        ...


@dataclass(frozen=True)
class Snapshot:
    """Objects of a kind. The end of a list that lasts for minutes is newer than its version."""

    items: tuple[Manifest, ...]
    version: str
    """The resource version, from which a watch continues."""


@dataclass(frozen=True)
class WatchEvent:
    """A change of an object."""

    object: Manifest
    """The object after the change; before it for a deletion."""
    is_deletion: bool


class Cluster(Kube, Protocol):
    """A cluster as its user sees it: also watches, small changes, and commands in pods."""

    @property
    def namespace(self) -> str:
        """The default namespace."""
        ...

    def snapshot(self, kind: Kind, namespace: str | None, fields: str = "") -> Snapshot:
        """Return the objects of one namespace, or of all (None), and their version."""
        ...

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[WatchEvent]:
        """Yield changes after a resource version, for about a minute. Raises WatchExpired."""
        ...

    def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest) -> Manifest:
        """Change some fields of an object; return the complete object."""
        ...

    def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Iterator[bytes]:
        """Run a command in a container and yield its standard output.

        Raises:
            CommandFailed: it ended with a nonzero exit code.
            StreamBroken: the connection broke before it ended.
        """
        ...
