"""The final report in a driver's output. Pure."""

from __future__ import annotations

from pydantic import ValidationError

from rlhf_api.on_cluster import FINAL_REPORT
from rlhf_api.report import StatusReport


def find_final_report(output: str, submission: str) -> StatusReport | None:
    """The last final report of a submission in the end of its output.

    Lines may follow it: Python and Ray sometimes have a word to say when a process ends. A line
    that only looks like a report is the user's, who may print anything, and says nothing.
    """
    for line in reversed(output.split("\n")):  # a report may hold other ends of lines
        if line.startswith(FINAL_REPORT):
            report = _parsed(line.removeprefix(FINAL_REPORT))
            if report is not None and report.final and report.submission_id == submission:
                return report
    return None


def _parsed(text: str) -> StatusReport | None:
    try:
        return StatusReport.model_validate_json(text)
    except ValidationError:
        return None
