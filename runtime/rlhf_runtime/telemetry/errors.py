"""The errors of telemetry.

RlhfError
└── TelemetryError
    ├── TrackerMissing       TrackerMissing       a tracker's library is not installed
    ├── TrackerUnavailable   TrackerUnavailable   a tracker could not start its run
    ├── CannotRecord         CannotRecord         the run's folder cannot be written any more
    │   └── RunFolderGone    RunFolderGone        it was deleted, moved or replaced meanwhile
    ├── ReportPortTaken      ReportPortTaken      another process serves its report at the port
    └── NotARun              NotARun              a folder that holds no run
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class TelemetryError(RlhfError):
    """Something about records, trackers or reports went wrong."""

    reason = "TelemetryError"


class TrackerMissing(TelemetryError):
    """A tracker that the manifest asks for is not installed."""

    reason = "TrackerMissing"
    exit_code = ExitCode.MANIFEST


class TrackerUnavailable(TelemetryError):
    """A tracker's library could not start its run: no key, no server, no permission."""

    reason = "TrackerUnavailable"
    exit_code = ExitCode.RETRIABLE


class CannotRecord(TelemetryError):
    """The run's folder cannot be written any more: most likely its disk is full."""

    reason = "CannotRecord"
    exit_code = ExitCode.RETRIABLE


class RunFolderGone(CannotRecord):
    """The run's folder, or the records in it, were deleted, moved or replaced while it ran."""

    reason = "RunFolderGone"


class ReportPortTaken(TelemetryError):
    """The port of the report is held by another process, or cannot be used."""

    reason = "ReportPortTaken"
    exit_code = ExitCode.RETRIABLE


class NotARun(TelemetryError):
    """A folder was named as a run's folder and holds no run."""

    reason = "NotARun"
    exit_code = ExitCode.MANIFEST
