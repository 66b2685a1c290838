"""`rlhf report DIR`: write report.html again from the files of a run's folder."""

from __future__ import annotations

from pathlib import Path

from rlhf_runtime.telemetry.report import write_report
from rlhf_runtime.telemetry.run_folder import RunFolder


def report_command(run_dir: Path) -> Path:
    """Write the report of a run, finished or not, and return its path.

    Raises:
        NotARun: the folder holds no run; it ends the command with exit code 2.
    """
    with RunFolder(run_dir) as folder:
        return write_report(folder)
