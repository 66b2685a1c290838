"""Ray's Jobs API in JSON, and the final report in a driver's log. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from rlhf_api.on_cluster import FINAL_REPORT
from rlhf_api.reading.report import read_report
from rlhf_api.report import StatusReport
from rlhf_operator.clients.head.protocol import Submission, SubmissionState

JOBS_PATH: Final = "/api/jobs/"
SUBMISSION_TYPE: Final = "SUBMISSION"
"""Type of jobs that the Jobs API started; drivers that only connected have another."""


class RayJob(BaseModel):
    """One entry of the Jobs API; fields that are not named here are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    type: str
    submission_id: Annotated[str, Field(min_length=1, max_length=256)] | None
    status: SubmissionState
    message: str | None = None
    driver_exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    driver_node_id: Annotated[str, Field(pattern=r"^[0-9a-f]{1,128}$")] | None = None

    @model_validator(mode="after")
    def _has_id(self) -> RayJob:
        if self.type == SUBMISSION_TYPE and self.submission_id is None:
            raise ValueError("a submission has no submission_id")
        return self

    @property
    def submission(self) -> Submission:
        """The entry as a Submission."""
        # The log's end follows the first line of Ray's message.
        first = (self.message or "").lstrip().partition("\n")[0]
        return Submission(self.submission_id or "", self.status, self.driver_exit_code, first)


class SubmitAnswer(BaseModel):
    """The answer to a submission."""

    submission_id: str


class StopAnswer(BaseModel):
    """The answer to a request to stop."""

    model_config = ConfigDict(strict=True)

    stopped: bool
    """True if a process was running."""


RAY_JOBS: Final = TypeAdapter(list[RayJob])


def submission_body(id: str, command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """Return the body of a request that starts a command on the head."""
    body: dict[str, Any] = {
        "submission_id": id,
        # `exec` replaces the shell, so that exit code and signals are the command's own. Without
        # requested resources Ray starts the command on the head.
        "entrypoint": f"exec {shlex.join(command)}",
        "runtime_env": {"env_vars": dict(environment)},
    }
    return json.dumps(body).encode()


def unknown_job_message(id: str) -> str:
    """Return Ray's text, with status 404, about a submission that does not exist."""
    return f"Job {id} does not exist"


def find_final_report(output: str, submission: str) -> StatusReport | None:
    """Return the last final report of a submission in the end of its log."""
    # Lines may follow it: Python and Ray may write when a process ends. A line that only looks
    # like a report is the user's, who may print anything. Split at "\n" only: a report may hold
    # other line ends.
    for line in reversed(output.split("\n")):
        if line.startswith(FINAL_REPORT):
            report = _parse_report(line.removeprefix(FINAL_REPORT))
            if report is not None and report.final and report.submission_id == submission:
                return report
    return None


def _parse_report(text: str) -> StatusReport | None:
    try:
        return read_report(text)
    except ValidationError:
        return None
