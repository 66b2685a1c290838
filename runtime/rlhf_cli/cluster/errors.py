"""The errors of commands for jobs on a cluster; those of requests are in `rlhf_kube.errors`.

ClusterError
├── ExtraMissing          the kubernetes package, or one for the job's storage, is not installed
├── ClusterTooOld         the API server's version is below the minimum
├── JobNotFound           the job does not exist
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


class ClusterTooOld(ClusterError):
    """The API server's version is below the minimum for RLHFJobs."""

    reason = "ClusterTooOld"
    exit_code = ExitCode.MANIFEST


class JobNotFound(ClusterError):
    """There is no such RLHFJob."""

    reason = "JobNotFound"
    exit_code = ExitCode.MANIFEST


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
