"""What the commands want of Kubernetes; the one seam to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlhf_kube.kinds import Kind

Object = Mapping[str, Any]
"""A Kubernetes object, as its API gives it."""

FIELD_MANAGER = "rlhf"
"""Who writes, for server-side apply."""


@dataclass(frozen=True)
class Target:
    """Which cluster and namespace are meant; the same words as kubectl's."""

    kubeconfig: Path | None = None
    """Default: what KUBECONFIG names, else ~/.kube/config, else the pod's own account."""
    context: str | None = None
    """Default: the kubeconfig's current one."""
    namespace: str | None = None
    """Default: the context's, else default."""


@dataclass(frozen=True)
class Listing:
    """Objects at one time."""

    items: tuple[Object, ...]
    version: str
    """The time, for a watch that goes on from there."""


@dataclass(frozen=True)
class Change:
    """Something happened to an object."""

    object: Object
    """As it is now, or was when it was deleted."""
    is_deletion: bool


class WatchExpired(Exception):
    """The version is too old to watch from: list again."""


class CommandFailed(Exception):
    """A command in a pod ended with another code than 0."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"exit code {code}: {output.strip()}")
        self.code = code
        self.output = output
        """What it wrote to its standard error."""


class StreamBroken(Exception):
    """The connection to a command in a pod ended before the command did."""


class Cluster(Protocol):
    """A cluster, as its user.

    Every method raises ClusterUnreachable and AccessDenied; those about an object ObjectNotFound;
    those about RLHFJobs NotInstalled.
    """

    @property
    def namespace(self) -> str:
        """The namespace that is meant where none is named."""
        ...

    def version(self) -> tuple[int, int]:
        """The API server's, such as (1, 34)."""
        ...

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object."""
        ...

    def list(
        self, kind: Kind, namespace: str | None, labels: str = "", fields: str = ""
    ) -> Listing:
        """Objects of a namespace, or of all (None), that selectors match."""
        ...

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[Change]:
        """What happens after a version; ends after a minute or so. Raises WatchExpired."""
        ...

    def create(self, kind: Kind, object: Object, *, dry_run: bool = False) -> Object:
        """A new object, in the namespace that it names. Raises ObjectRefused."""
        ...

    def apply(
        self, kind: Kind, object: Object, *, dry_run: bool = False, force: bool = False
    ) -> Object:
        """An object made, or changed, to be as said (server-side apply).

        Args:
            dry_run: only tell what would come of it.
            force: take over fields that another manager has set; else FieldsConflict.

        Raises:
            ObjectRefused: rules, quotas or policies are against it.
        """
        ...

    def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """An object with some fields changed. Raises ObjectRefused."""
        ...

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Begin to delete an object; with a uid only the one that has it."""
        ...

    def execute(
        self, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> Iterator[bytes]:
        """What a command in a container writes to its standard output, as it comes.

        Raises:
            CommandFailed: it ended with another code than 0.
            StreamBroken: the connection ended before it did.
        """
        ...
