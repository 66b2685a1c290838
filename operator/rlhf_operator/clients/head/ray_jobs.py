"""Ray's Jobs API in JSON: what is sent, and what of its answers is used. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from rlhf_operator.clients.head.protocol import Submission, SubmissionState

JOBS_PATH: Final = "/api/jobs/"
SUBMITTED: Final = "SUBMISSION"
"""The type of what the Jobs API started, unlike drivers that only connected."""


class RayJob(BaseModel):
    """One entry of the Jobs API. What is not named here is not read."""

    model_config = ConfigDict(frozen=True, strict=True)

    type: str
    submission_id: Annotated[str, Field(min_length=1, max_length=256)] | None
    status: SubmissionState
    message: str | None = None
    driver_exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    driver_node_id: Annotated[str, Field(pattern=r"^[0-9a-f]{1,128}$")] | None = None

    @model_validator(mode="after")
    def _is_named(self) -> RayJob:
        if self.type == SUBMITTED and self.submission_id is None:
            raise ValueError("a submission has no submission_id")
        return self

    @property
    def submission(self) -> Submission:
        """The same in our words. Ray's message has a first line, and then the log's end."""
        first = (self.message or "").lstrip().partition("\n")[0]
        return Submission(self.submission_id or "", self.status, self.driver_exit_code, first)


class Submitted(BaseModel):
    """The answer to a submission."""

    submission_id: str


class Stopped(BaseModel):
    """The answer to a wish to stop."""

    model_config = ConfigDict(strict=True)

    stopped: bool
    """Whether there was anything to stop."""


RAY_JOBS: Final = TypeAdapter(list[RayJob])


def submission_body(id: str, command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """What starts a command.

    No resources are asked for: Ray starts such a command on the head. `exec` makes the command take
    the shell's place, so that the exit code and the signals are its own.
    """
    body: dict[str, Any] = {
        "submission_id": id,
        "entrypoint": f"exec {shlex.join(command)}",
        "runtime_env": {"env_vars": dict(environment)},
    }
    return json.dumps(body).encode()


def unknown_words(id: str) -> str:
    """What Ray answers, with status 404, about a submission that it does not know."""
    return f"Job {id} does not exist"
