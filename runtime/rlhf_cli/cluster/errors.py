"""The errors of commands for jobs on a cluster.

ClusterError
├── ExtraMissing          the kubernetes package, or one for the job's storage, is not installed
├── KubeconfigUnusable    which cluster is meant cannot be found out
├── ClusterUnreachable    the API server does not answer, or not sensibly
├── ClusterTooOld         the API server is of an earlier version than RLHFJobs need
├── NotInstalled          the cluster does not know RLHFJobs
├── AccessDenied          the user may not do this there
├── ObjectNotFound        an object that a command needs does not exist
│   └── JobNotFound       the job does not exist
├── ObjectRefused         the API server does not take an object
│   └── FieldsConflict    somebody else has set fields that a submission would change
├── JobDeleted            the job was deleted while it was waited for
├── JobHasEnded           what was asked for needs a job that has not ended
├── NotConfirmed          a deletion was not confirmed
├── NothingToRead         the job has not written what is asked for, or it cannot be found
├── ReaderFailed          the pod that reads the job's volume did not start
├── TransferFailed        a file did not arrive whole
└── OutputExists          what is fetched would replace what lies there
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class ClusterError(RlhfError):
    """The base."""


class ExtraMissing(ClusterError):
    """A package of an extra is not installed."""

    reason = "ExtraMissing"
    exit_code = ExitCode.MANIFEST


class KubeconfigUnusable(ClusterError):
    """There is no kubeconfig, it cannot be read, or it has no such context."""

    reason = "KubeconfigUnusable"
    exit_code = ExitCode.MANIFEST


class ClusterUnreachable(ClusterError):
    """The API server cannot be reached, or fails."""

    reason = "ClusterUnreachable"
    exit_code = ExitCode.RETRIABLE


class ClusterTooOld(ClusterError):
    """The API server's version is below the oldest that RLHFJobs need."""

    reason = "ClusterTooOld"
    exit_code = ExitCode.MANIFEST


class NotInstalled(ClusterError):
    """The CustomResourceDefinition is not there."""

    reason = "NotInstalled"
    exit_code = ExitCode.MANIFEST


class AccessDenied(ClusterError):
    """The API server does not know the user, or its roles do not allow this."""

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
    """A rule, a quota, a policy or a webhook is against an object."""

    reason = "ObjectRefused"
    exit_code = ExitCode.MANIFEST


class FieldsConflict(ObjectRefused):
    """Another tool owns fields whose values would change."""

    reason = "FieldsConflict"
    exit_code = ExitCode.MANIFEST

    def __init__(self, text: str, managers: frozenset[str]) -> None:
        super().__init__(text)
        self.managers = managers
        """Who has set them; empty where the cluster does not say it."""


class JobDeleted(ClusterError):
    """The job went away before it ended."""

    reason = "JobDeleted"
    exit_code = ExitCode.RETRIABLE


class JobHasEnded(ClusterError):
    """The job has ended already."""

    reason = "JobHasEnded"
    exit_code = ExitCode.MANIFEST


class NotConfirmed(ClusterError):
    """Nobody said yes."""

    reason = "NotConfirmed"
    exit_code = ExitCode.MANIFEST


class NothingToRead(ClusterError):
    """There is no such file, or no place to read it from."""

    reason = "NothingToRead"
    exit_code = ExitCode.MANIFEST


class ReaderFailed(ClusterError):
    """The reader pod could not start, or ended before its time."""

    reason = "ReaderFailed"
    exit_code = ExitCode.RETRIABLE


class TransferFailed(ClusterError):
    """The connection broke too often, a file changed on its way, or could not be written."""

    reason = "TransferFailed"
    exit_code = ExitCode.RETRIABLE


class OutputExists(ClusterError):
    """Something lies where a fetched file or folder belongs."""

    reason = "OutputExists"
    exit_code = ExitCode.MANIFEST
