"""One submission of a pretended head: what Ray says about it, its report, and its output."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_api.exits import ExitCode
from rlhf_api.on_cluster import FINAL_REPORT
from rlhf_api.report import CheckpointReport, SavingReport, StatusReport
from rlhf_operator.clients.head.protocol import SubmissionState

RAY_MESSAGES = {
    SubmissionState.PENDING: "Job has not started yet. It may be waiting for the runtime "
    "environment to be set up.",
    SubmissionState.RUNNING: "Job is currently running.",
    SubmissionState.SUCCEEDED: "Job finished successfully.",
    SubmissionState.STOPPED: "Job was intentionally stopped.",
}
LOG_LINES_OF_A_FAILURE = 10
LOG_CHARACTERS_OF_A_FAILURE = 20_000
NODE_ID = "0" * 56


@dataclass
class FakeDriver:
    """A driver that does what a test says, when it says so."""

    id: str
    entrypoint: str
    environment: Mapping[str, str]
    total_steps: int
    stubborn: bool = False
    """Whether it goes on when it is told to stop."""
    farewell: str | None = None
    """What it writes when it is told to stop. None: a final report."""
    state: SubmissionState = SubmissionState.PENDING
    exit_code: int | None = None
    output: str = ""
    """What it wrote, and Ray before it."""
    report: StatusReport | None = None
    """What it serves now; no driver that has ended serves anything."""
    acknowledged: int | None = None
    """The sequence of the report that was stored."""
    stops: int = 0
    """How often it was told to stop."""
    _sequence: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def job(self) -> str:
        return self.id.rsplit("-", 2)[0]

    def begin(self) -> None:
        """Its process starts."""
        assert self.state is SubmissionState.PENDING, self.state
        self.state = SubmissionState.RUNNING
        self.output += f"Running entrypoint for job {self.id}: {self.entrypoint}\n"

    def advance(
        self,
        step: int,
        phase: str = "Train",
        checkpoint: int | None = None,
        metrics: Mapping[str, float] | None = None,
        saving: SavingReport | None = None,
    ) -> None:
        """It reports that so many steps are done, and how many of them its checkpoint holds."""
        assert self.state is SubmissionState.RUNNING, self.state
        said = self._next_report(step, phase, checkpoint, metrics or {})
        self.report = said.model_copy(update={"saving": saving})

    def finish(
        self,
        exit_code: ExitCode = ExitCode.DONE,
        reason: str | None = None,
        message: str = "",
        lingers: bool = True,
    ) -> None:
        """It writes its final report, and ends once that was acknowledged, or at once."""
        assert self.state is SubmissionState.RUNNING, self.state
        last = self.report or self._next_report(0, "Start", None, {})
        step = self.total_steps if exit_code is ExitCode.DONE else last.step
        self.report = last.model_copy(
            update={
                "sequence": next(self._sequence),
                "step": step,
                "final": True,
                "exit_code": exit_code,
                "reason": reason,
                "message": message,
            }
        )
        self.output += f"{FINAL_REPORT}{self.report.model_dump_json(by_alias=True)}\n"
        if not lingers:
            self.end(exit_code)

    def end(self, exit_code: int) -> None:
        """Its process is gone, whatever it was doing; -N: killed by signal N."""
        self._gone(SubmissionState.FAILED if exit_code else SubmissionState.SUCCEEDED)
        self.exit_code = exit_code

    def stop(self) -> bool:
        """SIGTERM: it saves and ends, unless it is stubborn. Whether there was a process."""
        if self.state.has_ended:
            return False
        self.stops += 1
        if self.state is SubmissionState.RUNNING and self.stubborn:
            return True
        if self.farewell is not None:
            self.output += self.farewell
        elif self.state is SubmissionState.RUNNING and not (self.report and self.report.final):
            self.finish(ExitCode.INTERRUPTED, message="stopped")
        self._gone(SubmissionState.STOPPED)
        return True

    def kill(self) -> None:
        """Ray has waited long enough for the end of a stubborn one."""
        assert self.stops, "nobody told it to stop"
        self._gone(SubmissionState.STOPPED)

    def acknowledge(self, submission_id: str, sequence: int) -> bool:
        """Whether it is its final report that was stored; then it ends."""
        report = self.report
        if report is None or (submission_id, sequence) != (self.id, report.sequence):
            return False
        self.acknowledged = sequence
        if report.exit_code is not None:
            self.end(report.exit_code)
        return True

    def output_end(self, lines: int) -> str:
        """The last lines of its output."""
        ended = self.output.endswith("\n")
        return "\n".join(self.output.split("\n")[-lines - ended :])

    def entry(self) -> dict[str, Any]:
        """What Ray's Jobs API says about it."""
        began = self.state is not SubmissionState.PENDING
        return {
            "type": "SUBMISSION",
            "job_id": None,
            "submission_id": self.id,
            "driver_info": None,
            "status": self.state.value,
            "entrypoint": self.entrypoint,
            "message": self._message(),
            "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR" if self.exit_code else None,
            "start_time": 1_800_000_000_000,
            "end_time": 1_800_000_001_000 if self.state.has_ended else None,
            "metadata": None,
            "runtime_env": {"env_vars": dict(self.environment)},
            "driver_agent_http_address": "http://127.0.0.1:1" if began else None,
            "driver_node_id": NODE_ID if began else None,
            "driver_exit_code": self.exit_code,
        }

    def _gone(self, state: SubmissionState) -> None:
        assert not self.state.has_ended, self.state
        self.state = state
        self.report = None

    def _message(self) -> str:
        if self.state is not SubmissionState.FAILED:
            return RAY_MESSAGES[self.state]
        tail = self.output_end(LOG_LINES_OF_A_FAILURE)[-LOG_CHARACTERS_OF_A_FAILURE:]
        return (
            f"Job entrypoint command failed with exit code {self.exit_code}, last available logs "
            f"(truncated to 20,000 chars):\n{tail}"
        )

    def _next_report(
        self, step: int, phase: str, checkpoint: int | None, metrics: Mapping[str, float]
    ) -> StatusReport:
        saved = self.report.checkpoint if self.report else None
        if checkpoint is not None:
            path = f"/rlhf/run/checkpoints/step-{checkpoint}"
            saved = CheckpointReport(step=checkpoint, path=path)
        return StatusReport(
            job=self.job,
            submission_id=self.id,
            sequence=next(self._sequence),
            phase=phase,
            step=step,
            total_steps=self.total_steps,
            metrics=dict(metrics),
            checkpoint=saved,
        )
