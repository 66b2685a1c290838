"""The errors of requests to Kubernetes.

KubeError
├── KubeconfigUnusable   no kubeconfig, or it does not name the cluster
├── Unreachable          no answer, or a temporary failure: the same request may succeed later
│   └── ListExpired      the API server has forgotten the version whose pages were read
├── NotFound             the object, or its namespace, does not exist
├── Conflict             the object has changed since it was read, or another one has its name
│   ├── AlreadyExists    an object of this name exists
│   └── FieldsConflict   another field manager owns fields that would change
└── Refused              the same request fails until somebody changes something
    ├── Forbidden        the user is unknown, or no role allows the request
    ├── NotAdmitted      a quota, an admission policy or a webhook rejects the object
    ├── Invalid          the object breaks the schema or the rules of its kind
    │   └── UnknownField the kind's definition is of another version
    └── NotInstalled     the API server does not serve the kind

`reason` and `exit_code` are those of the command; the operator's reasons are in
`rlhf_operator.decide.api_errors`.
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class KubeError(RlhfError):
    """Base class: a request that Kubernetes refuses, or cannot answer."""

    exit_code = ExitCode.MANIFEST


class KubeconfigUnusable(KubeError):
    """There is no kubeconfig, it cannot be read, or it lacks the context."""

    reason = "KubeconfigUnusable"


class Unreachable(KubeError):
    """No answer from the API server, or a temporary failure: try again later."""

    reason = "ClusterUnreachable"
    exit_code = ExitCode.RETRIABLE


class ListExpired(Unreachable):
    """The pages of a list took longer than the API server keeps a version, some minutes."""

    def __init__(self, message: str, following: str) -> None:
        super().__init__(message)
        self.following: str = following
        """Token for the remaining objects, as they are now."""


class NotFound(KubeError):
    """There is no object of this kind, namespace and name."""

    reason = "ObjectNotFound"


class Conflict(KubeError):
    """The object was replaced, or has changed since it was read."""

    reason = "ObjectRefused"


class AlreadyExists(Conflict):
    """An object of this kind, namespace and name exists."""


class FieldsConflict(Conflict):
    """Another field manager owns fields whose values would change."""

    reason = "FieldsConflict"

    def __init__(self, text: str, managers: frozenset[str]) -> None:
        super().__init__(text)
        self.managers = managers
        """The owners of the fields; empty if the API server does not name them."""


class Refused(KubeError):
    """The API server refuses the request, and will until somebody changes something."""

    reason = "ObjectRefused"


class Forbidden(Refused):
    """The API server does not know the user, or the user's roles do not allow the request."""

    reason = "AccessDenied"


class NotAdmitted(Refused):
    """A quota, an admission policy or a webhook rejects the object."""


class Invalid(Refused):
    """The object breaks the schema or the rules of its kind."""


class UnknownField(Invalid):
    """The object has a field that the kind's definition in the cluster lacks."""


class NotInstalled(Refused):
    """The API server does not serve the kind."""

    reason = "NotInstalled"


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
