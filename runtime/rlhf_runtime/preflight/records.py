"""Checks the storage of checkpoints and the trackers of a job."""

from __future__ import annotations

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.checkpoint.storage import require_persistent
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.telemetry.trackers import require_installed


def check_records(spec: RLHFJobSpec, findings: Findings) -> None:
    """Check the address of checkpoints, without access to it, and the libraries of trackers.

    Args:
        spec: of a job that runs on this machine.
        findings: collects errors.
    """
    storage = spec.checkpoint.storage
    if storage is not None and storage.uri is not None:
        with findings.about("spec", "checkpoint", "storage", "uri"):
            require_persistent(storage.uri)
    with findings.about("spec", "telemetry"):
        require_installed(spec.telemetry)
