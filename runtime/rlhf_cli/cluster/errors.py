"""The errors of commands for jobs on a cluster.

ClusterError
├── ExtraMissing          the kubernetes package, or one for the job's storage, is not installed
├── KubeconfigUnusable    no kubeconfig, or it does not name the cluster
├── ClusterUnreachable    the API server does not answer, or answers with an error
├── ClusterTooOld         the API server's version is below the minimum
├── NotInstalled          the RLHFJob CRD is not installed
├── AccessDenied          the user is unknown or lacks a permission
├── ObjectNotFound        an object does not exist
│   └── JobNotFound       the job does not exist
├── ObjectRefused         the API server rejects an object
│   └── FieldsConflict    another manager owns fields that would change
├── JobDeleted            the job was deleted while a command waited for it
├── JobHasEnded           the command needs a job that has not ended
├── NotConfirmed          the user did not confirm a deletion
├── NothingToRead         a file does not exist, or its location is unknown
├── ReaderFailed          the pod that reads the job's volume did not start
├── TransferFailed        a file did not arrive complete
└── OutputExists          a fetched file would replace an existing one
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class ClusterError(RlhfError):
    """Base class."""


class ExtraMissing(ClusterError):
    """A package of an optional extra is not installed."""

    reason = "ExtraMissing"
    exit_code = ExitCode.MANIFEST


class KubeconfigUnusable(ClusterError):
    """There is no kubeconfig, it cannot be read, or it lacks the context."""

    reason = "KubeconfigUnusable"
    exit_code = ExitCode.MANIFEST


class ClusterUnreachable(ClusterError):
    """The API server cannot be reached, or fails."""

    reason = "ClusterUnreachable"
    exit_code = ExitCode.RETRIABLE


class ClusterTooOld(ClusterError):
    """The API server's version is below the minimum for RLHFJobs."""

    reason = "ClusterTooOld"
    exit_code = ExitCode.MANIFEST


class NotInstalled(ClusterError):
    """The CustomResourceDefinition is not installed."""

    reason = "NotInstalled"
    exit_code = ExitCode.MANIFEST


class AccessDenied(ClusterError):
    """The API server does not know the user, or the user's roles do not allow the request."""

    reason = "AccessDenied"
    exit_code = ExitCode.MANIFEST


class ObjectNotFound(ClusterError):
    """There is no object of this kind, namespace and name."""

    reason = "ObjectNotFound"
    exit_code = ExitCode.MANIFEST


class JobNotFound(ObjectNotFound):
    """There is no such RLHFJob."""

    reason = "JobNotFound"
    exit_code = ExitCode.MANIFEST


class ObjectRefused(ClusterError):
    """A rule, a quota, a policy or a webhook rejects an object."""

    reason = "ObjectRefused"
    exit_code = ExitCode.MANIFEST


class FieldsConflict(ObjectRefused):
    """Another field manager owns fields whose values would change."""

    reason = "FieldsConflict"
    exit_code = ExitCode.MANIFEST

    def __init__(self, text: str, managers: frozenset[str]) -> None:
        super().__init__(text)
        self.managers = managers
        """The owners of the fields; empty if the API server does not name them."""


class JobDeleted(ClusterError):
    """The job was deleted before it ended."""

    reason = "JobDeleted"
    exit_code = ExitCode.RETRIABLE


class JobHasEnded(ClusterError):
    """The job has already ended."""

    reason = "JobHasEnded"
    exit_code = ExitCode.MANIFEST


class NotConfirmed(ClusterError):
    """The user did not confirm."""

    reason = "NotConfirmed"
    exit_code = ExitCode.MANIFEST


class NothingToRead(ClusterError):
    """The file does not exist, or its location is unknown."""

    reason = "NothingToRead"
    exit_code = ExitCode.MANIFEST


class ReaderFailed(ClusterError):
    """The reader pod did not start, or ended early."""

    reason = "ReaderFailed"
    exit_code = ExitCode.RETRIABLE


class TransferFailed(ClusterError):
    """The connection broke too often, or a file changed during the transfer or could not be
    written."""

    reason = "TransferFailed"
    exit_code = ExitCode.RETRIABLE


class OutputExists(ClusterError):
    """A file or folder already exists where a fetched one belongs."""

    reason = "OutputExists"
    exit_code = ExitCode.MANIFEST
