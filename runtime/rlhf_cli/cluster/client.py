"""The protocol through which commands use Kubernetes; `remote` implements it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlhf_kube.kinds import Kind

Object = Mapping[str, Any]
"""A Kubernetes object as JSON."""

FIELD_MANAGER = "rlhf"
"""The field manager's name for server-side apply."""


@dataclass(frozen=True)
class ClusterTarget:
    """The cluster and namespace that kubectl's options select."""

    kubeconfig: Path | None = None
    """Default: what KUBECONFIG names, else ~/.kube/config, else the pod's own account."""
    context: str | None = None
    """Default: the kubeconfig's current one."""
    namespace: str | None = None
    """Default: the context's, else default."""


def kubeconfig_files(
    requested: Path | None, environment: Mapping[str, str], home: Path
) -> tuple[Path, ...]:
    """The files that kubectl would merge, whether they exist or not; earlier ones win.

    Args:
        requested: the value of --kubeconfig.
        environment: this process's variables.
        home: the user's home folder.
    """
    # As kubectl: --kubeconfig replaces the variable, which may name several files.
    if requested is not None:
        return (requested,)
    paths = [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    if paths:
        return tuple(Path(path).expanduser() for path in paths)
    return (home / ".kube" / "config",)


@dataclass(frozen=True)
class Listing:
    """A list of objects."""

    items: tuple[Object, ...]
    version: str
    """The list's resource version, from which a watch continues."""


@dataclass(frozen=True)
class WatchEvent:
    """A change of an object."""

    object: Object
    """The object after the change; before it for a deletion."""
    is_deletion: bool


class WatchExpired(Exception):
    """The resource version is too old to watch from; list again."""


class CommandFailed(Exception):
    """A command in a pod ended with a nonzero exit code."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"exit code {code}: {output.strip()}")
        self.code = code
        self.output = output
        """Its standard error."""


class StreamBroken(Exception):
    """The connection to a command in a pod broke before the command ended."""


class Cluster(Protocol):
    """A cluster as its user sees it.

    Every method raises ClusterUnreachable and AccessDenied. Methods about one object raise
    ObjectNotFound, those about RLHFJobs NotInstalled.
    """

    @property
    def namespace(self) -> str:
        """The default namespace."""
        ...

    def version(self) -> tuple[int, int]:
        """The API server's version, such as (1, 34)."""
        ...

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Read an object."""
        ...

    def list(
        self, kind: Kind, namespace: str | None, labels: str = "", fields: str = ""
    ) -> Listing:
        """List the objects that match the selectors, in one namespace or in all (None)."""
        ...

    def watch(
        self, kind: Kind, namespace: str | None, version: str, fields: str = ""
    ) -> Iterator[WatchEvent]:
        """Yield changes after a resource version, for about a minute. Raises WatchExpired."""
        ...

    def create(self, kind: Kind, object: Object, *, dry_run: bool = False) -> Object:
        """Create an object in the namespace that it names. Raises ObjectRefused."""
        ...

    def apply(
        self, kind: Kind, object: Object, *, dry_run: bool = False, force: bool = False
    ) -> Object:
        """Create or change an object by server-side apply.

        Args:
            dry_run: validate only; nothing is stored.
            force: take over fields of other managers; otherwise they raise FieldsConflict.

        Raises:
            ObjectRefused: a rule, quota or policy rejects the object.
        """
        ...

    def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """Change some fields of an object. Raises ObjectRefused."""
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
        """Start to delete an object; with a uid only if it still has that uid."""
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
