"""A head over HTTP: Ray's Jobs API at one port, the driver's report at another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NoReturn, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError

from rlhf_api.on_cluster import DASHBOARD_PORT, REPORT_PORT
from rlhf_api.reading.report import read_report
from rlhf_api.report import StatusReport
from rlhf_operator.clients.head.addresses import Address, HeadPod, Route
from rlhf_operator.clients.head.http import (
    Answer,
    AnswerTooLong,
    ConnectionRefused,
    HttpClient,
    excerpt,
)
from rlhf_operator.clients.head.protocol import Head, HeadRefused, HeadUnreachable, Submission
from rlhf_operator.clients.head.ray_jobs import (
    JOBS_PATH,
    RAY_JOBS,
    SUBMISSION_TYPE,
    RayJob,
    StopAnswer,
    SubmitAnswer,
    find_final_report,
    submission_body,
    unknown_job_message,
)

JOBS_BYTES: Final = 2 << 20
"""Limit of all submissions: Ray reports up to 20,000 characters about a failed one."""
REPORT_BYTES: Final = 1 << 20
"""Limit of a report, or of a log's end; the longest report has a tenth of it."""
LOG_LINES: Final = 64
"""Lines at a log's end that are searched for the final report."""
_LOG_PATH: Final = "/api/v0/logs/file"

Parsed = TypeVar("Parsed")


class HttpHeads:
    """Creates heads that share connections, for one event loop."""

    def __init__(self, route: Route, client: HttpClient) -> None:
        self._route = route
        self._client = client

    def head(self, pod: HeadPod, token: str) -> Head:
        """Return the head of a RayCluster; no request is made yet.

        Raises:
            HeadUnreachable: it has no address yet.
        """
        jobs = self._route.address(pod, DASHBOARD_PORT, token)
        report = self._route.address(pod, REPORT_PORT, token)
        return HttpHead(self._client, jobs, report)


class HttpHead:
    """The head of one cluster; without state between two calls."""

    def __init__(self, client: HttpClient, jobs: Address, report: Address) -> None:
        self._client = client
        self._jobs = jobs
        self._report = report

    async def submissions(self) -> tuple[Submission, ...]:
        """Return all submissions of this head; a new head pod starts without any."""
        answer = await self._request("GET", self._jobs, JOBS_PATH, JOBS_BYTES)
        jobs = self._parse(self._jobs, answer, RAY_JOBS.validate_json)
        return tuple(
            self._with_excerpt(job.submission) for job in jobs if job.type == SUBMISSION_TYPE
        )

    async def submit(self, id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a driver on the head. One with this id that exists is left as it is."""
        body = submission_body(id, command, environment)
        answer = await self._request("POST", self._jobs, JOBS_PATH, JOBS_BYTES, body)
        if answer.status == 200:
            submitted = self._parse(self._jobs, answer, SubmitAnswer.model_validate_json)
            if submitted.submission_id != id:
                self._fail(self._jobs, answer, f"not the answer to {id}")
        # Status 500 has several causes; a submission of this id that exists is one of them.
        elif await self._job(id) is None:
            self._fail(self._jobs, answer, f"{id} was not submitted")

    async def stop(self, id: str) -> None:
        """Ask a driver to save and end (SIGTERM); returns at once. No error if it has ended."""
        path = f"{_job_path(id)}/stop"
        answer = await self._request("POST", self._jobs, path, JOBS_BYTES, b"")
        if not _is_unknown(answer, id):
            self._parse(self._jobs, answer, StopAnswer.model_validate_json)

    async def final_report(self, id: str) -> StatusReport | None:
        """Return the final report in a submission's log: its last line. None: it has none."""
        job = await self._job(id)
        if job is None or job.driver_node_id is None:
            return None
        # By Ray's State API, which reads the end of a log: the Jobs API serves only all of it.
        try:
            output = await self._log_end(id, job.driver_node_id, LOG_LINES)
        except AnswerTooLong:
            try:
                output = await self._log_end(id, job.driver_node_id, 1)
            except AnswerTooLong:
                return None
        return find_final_report(output, id)

    async def report(self) -> StatusReport | None:
        """Return the running driver's report. None: no driver serves one."""
        try:
            answer = await self._request("GET", self._report, "/report", REPORT_BYTES)
        except ConnectionRefused:
            return None
        # 404: another program listens at the port; the driver is not up.
        if answer.status in (204, 404):
            return None
        return self._parse(self._report, answer, read_report)

    async def acknowledge(self, submission_id: str, sequence: int) -> None:
        """Tell the driver that its final report was stored, so that it need not linger."""
        body = json.dumps({"submissionId": submission_id, "sequence": sequence}).encode()
        try:
            answer = await self._request("POST", self._report, "/acknowledge", REPORT_BYTES, body)
        except ConnectionRefused:
            return  # the driver has ended
        if answer.status not in (204, 404):
            self._fail(self._report, answer, "the acknowledgement was refused")

    async def _job(self, id: str) -> RayJob | None:
        """Return Ray's entry of a submission. None: it does not exist."""
        answer = await self._request("GET", self._jobs, _job_path(id), JOBS_BYTES)
        if _is_unknown(answer, id):
            return None
        job = self._parse(self._jobs, answer, RayJob.model_validate_json)
        if job.submission_id != id:
            self._fail(self._jobs, answer, f"not an answer about {id}")
        return job

    async def _log_end(self, id: str, node: str, lines: int) -> str:
        query = urlencode({"node_id": node, "submission_id": id, "lines": lines})
        answer = await self._request("GET", self._jobs, f"{_LOG_PATH}?{query}", REPORT_BYTES)
        if answer.status != 200:
            self._fail(self._jobs, answer, f"no log of {id}")
        return answer.text

    async def _request(
        self, method: str, to: Address, path: str, limit: int, body: bytes | None = None
    ) -> Answer:
        """Return an answer; a refused token and errors of a proxy are raised."""
        answer = await self._client.exchange(method, to, path, limit, body)
        if to.proxied:
            self._check_proxy(to, answer)
        if answer.status in (401, 403):
            raise HeadRefused(self._describe(to, answer, "the token is refused"))
        return answer

    def _check_proxy(self, to: Address, answer: Answer) -> None:
        """Raise if the API server answered instead of the head."""
        try:
            status = _ApiStatus.model_validate_json(answer.body)
        except ValidationError:
            return
        message = excerpt(status.message, to.headers.values())
        error = f"{to.url}: the API server could not proxy the request: {message}"
        if _CONNECTION_REFUSED in status.message:
            raise ConnectionRefused(error)
        raise HeadUnreachable(error)

    def _parse(self, to: Address, answer: Answer, parser: Callable[[bytes], Parsed]) -> Parsed:
        if answer.status != 200:
            self._fail(to, answer, "not the status 200")
        try:
            return parser(answer.body)
        except ValidationError as error:
            # Without the value: it may be long, and may contain secrets.
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            field = ".".join(str(part) for part in errors[0]["loc"])
            message = f"{to.url}: not a valid answer: {field} {errors[0]['msg']}"
        raise HeadUnreachable(excerpt(message, to.headers.values()))

    def _fail(self, to: Address, answer: Answer, problem: str) -> NoReturn:
        raise HeadUnreachable(self._describe(to, answer, problem))

    def _describe(self, to: Address, answer: Answer, problem: str) -> str:
        text = excerpt(answer.text, to.headers.values())
        return f"{to.url}: {problem}: status {answer.status}: {text}"

    def _with_excerpt(self, submission: Submission) -> Submission:
        # The message ends up in the job's status, which others may read.
        message = excerpt(submission.message, self._jobs.headers.values())
        return Submission(submission.id, submission.state, submission.exit_code, message)


_CONNECTION_REFUSED: Final = "connection refused"
"""Part of the API server's message if no process listens at the port."""


class _ApiStatus(BaseModel):
    """The API server's own answer if it could not proxy a request."""

    kind: Literal["Status"]
    message: str = ""


def _job_path(id: str) -> str:
    return f"{JOBS_PATH}{quote(id, safe='')}"


def _is_unknown(answer: Answer, id: str) -> bool:
    return answer.status == 404 and answer.text.strip() == unknown_job_message(id)
