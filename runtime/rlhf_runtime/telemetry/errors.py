"""The errors of telemetry.

RlhfError
└── TelemetryError
    ├── TrackerMissing       a tracker's library is not installed
    ├── TrackerUnavailable   a tracker could not start its run
    ├── CannotRecord         the run's folder cannot be written
    │   └── RunFolderLost    it was deleted, moved or replaced during the run
    ├── ReportPortInUse      another process listens on the port of the report
    ├── NotARun              a folder without a run
    ├── NoSamples            a run without the wanted samples
    ├── NoConversation       a run without the wanted conversation
    └── WrongNumberOfRuns    too few or too many runs to compare
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class TelemetryError(RlhfError):
    """An error of records, trackers or reports."""

    reason = "TelemetryError"


class TrackerMissing(TelemetryError):
    """The library of a tracker in the manifest is not installed."""

    reason = "TrackerMissing"
    exit_code = ExitCode.MANIFEST


class TrackerUnavailable(TelemetryError):
    """A tracker's library could not start its run: no key, no server, no permission."""

    reason = "TrackerUnavailable"
    exit_code = ExitCode.RETRIABLE


class CannotRecord(TelemetryError):
    """The run's folder cannot be written: most likely its disk is full."""

    reason = "CannotRecord"
    exit_code = ExitCode.RETRIABLE


class RunFolderLost(CannotRecord):
    """The run's folder, or the records in it, were deleted, moved or replaced while it ran."""

    # Users match on reasons: this one does not follow the name of the class.
    reason = "RunFolderGone"


class ReportPortInUse(TelemetryError):
    """The port of the report is in use by another process, or not allowed."""

    # Another name than the class, as above.
    reason = "ReportPortTaken"
    exit_code = ExitCode.RETRIABLE


class NotARun(TelemetryError):
    """The folder contains no run."""

    reason = "NotARun"
    exit_code = ExitCode.MANIFEST


class NoSamples(TelemetryError):
    """The run has no samples of the wanted step, evaluation or prompt."""

    reason = "NoSamples"
    exit_code = ExitCode.MANIFEST


class NoConversation(TelemetryError):
    """The run has no such conversation."""

    reason = "NoConversation"
    exit_code = ExitCode.MANIFEST


class WrongNumberOfRuns(TelemetryError):
    """Too few or too many runs to compare."""

    reason = "WrongNumberOfRuns"
    exit_code = ExitCode.MANIFEST
