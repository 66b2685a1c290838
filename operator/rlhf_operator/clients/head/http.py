"""A head over HTTP: Ray's Jobs API at one port, the driver's report at another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NoReturn, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError

from rlhf_api.on_cluster import DASHBOARD_PORT, REPORT_PORT
from rlhf_api.report import StatusReport
from rlhf_operator.clients.head.addresses import Address, HeadPlace, Route
from rlhf_operator.clients.head.client import Answer, AnswerTooLong, HttpClient, NobodyListens
from rlhf_operator.clients.head.excerpt import excerpt
from rlhf_operator.clients.head.final_report import find_final_report
from rlhf_operator.clients.head.protocol import Head, HeadRefused, HeadUnreachable, Submission
from rlhf_operator.clients.head.ray_jobs import (
    JOBS_PATH,
    RAY_JOBS,
    SUBMITTED,
    RayJob,
    Stopped,
    Submitted,
    submission_body,
    unknown_words,
)

JOBS_BYTES: Final = 2 << 20
"""Of all submissions: Ray tells up to 20,000 characters about each that failed."""
REPORT_BYTES: Final = 1 << 20
"""Of a report, or of a log's end; the longest report has a tenth of it."""
LOG_LINES: Final = 64
"""At a log's end, in which the final report is looked for."""
_LOG_PATH: Final = "/api/v0/logs/file"

Parsed = TypeVar("Parsed")


class HttpHeads:
    """Makes heads that share connections, for one event loop."""

    def __init__(self, route: Route, client: HttpClient) -> None:
        self._route = route
        self._client = client

    def head(self, place: HeadPlace, token: str) -> Head:
        """The head of a RayCluster; nothing is asked of it yet.

        Raises:
            HeadUnreachable: it has no address yet.
        """
        jobs = self._route.address(place, DASHBOARD_PORT, token)
        report = self._route.address(place, REPORT_PORT, token)
        return HttpHead(self._client, jobs, report)


class HttpHead:
    """The head of one cluster. It remembers nothing between two calls."""

    def __init__(self, client: HttpClient, jobs: Address, report: Address) -> None:
        self._client = client
        self._jobs = jobs
        self._report = report

    async def submissions(self) -> tuple[Submission, ...]:
        """All that it knows of; those of a head that is gone are forgotten."""
        answer = await self._ask("GET", self._jobs, JOBS_PATH, JOBS_BYTES)
        found = self._parse(self._jobs, answer, RAY_JOBS.validate_json)
        return tuple(self._shown(job.submission) for job in found if job.type == SUBMITTED)

    async def submit(self, id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a driver on the head. One that exists already is left as it is: adopted."""
        body = submission_body(id, command, environment)
        answer = await self._ask("POST", self._jobs, JOBS_PATH, JOBS_BYTES, body)
        if answer.status == 200:
            done = self._parse(self._jobs, answer, Submitted.model_validate_json)
            if done.submission_id != id:
                self._complain(self._jobs, answer, f"not the answer to {id}")
        elif (
            await self._job(id) is None
        ):  # an id that is taken is one of several reasons for status 500
            self._complain(self._jobs, answer, f"{id} was not submitted")

    async def stop(self, id: str) -> None:
        """Ask a driver to save and end (SIGTERM); returns at once. One that has ended is fine."""
        answer = await self._ask("POST", self._jobs, f"{_path(id)}/stop", JOBS_BYTES, b"")
        if not _is_unknown(answer, id):
            self._parse(self._jobs, answer, Stopped.model_validate_json)

    async def final_report(self, id: str) -> StatusReport | None:
        """The final report in a submission's log: its last line. None: it has none.

        The log is read from its end, by Ray's State API: the Jobs API has only all of it.
        """
        job = await self._job(id)
        if job is None or job.driver_node_id is None:
            return None
        try:
            output = await self._log_end(id, job.driver_node_id, LOG_LINES)
        except AnswerTooLong:
            try:
                output = await self._log_end(id, job.driver_node_id, 1)
            except AnswerTooLong:
                return None
        return find_final_report(output, id)

    async def report(self) -> StatusReport | None:
        """What the running driver reports. None: nobody serves a report (yet, or any more)."""
        try:
            answer = await self._ask("GET", self._report, "/report", REPORT_BYTES)
        except NobodyListens:
            return None
        if answer.status in (204, 404):
            return None
        return self._parse(self._report, answer, StatusReport.model_validate_json)

    async def acknowledge(self, submission_id: str, sequence: int) -> None:
        """Tell the driver that its final report was stored: it need not linger."""
        body = json.dumps({"submissionId": submission_id, "sequence": sequence}).encode()
        try:
            answer = await self._ask("POST", self._report, "/acknowledge", REPORT_BYTES, body)
        except NobodyListens:
            return  # it does not linger any more
        if answer.status not in (204, 404):
            self._complain(self._report, answer, "the acknowledgement was not taken")

    async def _job(self, id: str) -> RayJob | None:
        """A submission as Ray tells of it. None: it does not know it."""
        answer = await self._ask("GET", self._jobs, _path(id), JOBS_BYTES)
        if _is_unknown(answer, id):
            return None
        job = self._parse(self._jobs, answer, RayJob.model_validate_json)
        if job.submission_id != id:
            self._complain(self._jobs, answer, f"not an answer about {id}")
        return job

    async def _log_end(self, id: str, node: str, lines: int) -> str:
        query = urlencode({"node_id": node, "submission_id": id, "lines": lines})
        answer = await self._ask("GET", self._jobs, f"{_LOG_PATH}?{query}", REPORT_BYTES)
        if answer.status != 200:
            self._complain(self._jobs, answer, f"no log of {id}")
        return answer.text

    async def _ask(
        self, method: str, to: Address, path: str, limit: int, body: bytes | None = None
    ) -> Answer:
        """The answer of somebody who takes the token."""
        answer = await self._client.exchange(method, to, path, limit, body)
        if to.proxied:
            self._check_proxy(to, answer)
        if answer.status in (401, 403):
            raise HeadRefused(self._words(to, answer, "the token is not taken"))
        return answer

    def _check_proxy(self, to: Address, answer: Answer) -> None:
        """Tell what the API server says in the head's place from what the head says."""
        try:
            said = _ApiStatus.model_validate_json(answer.body)
        except ValidationError:
            return
        message = excerpt(said.message, to.headers.values())
        words = f"{to.url}: the API server does not pass it on: {message}"
        if _NOBODY_LISTENS in said.message:
            raise NobodyListens(words)
        raise HeadUnreachable(words)

    def _parse(self, to: Address, answer: Answer, parser: Callable[[bytes], Parsed]) -> Parsed:
        if answer.status != 200:
            self._complain(to, answer, "not the status 200")
        try:
            return parser(answer.body)
        except ValidationError as error:
            # Without what was got: it may be long, and may hold secrets.
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            where = ".".join(str(part) for part in faults[0]["loc"])
            words = f"{to.url}: not the answer that was asked for: {where} {faults[0]['msg']}"
        raise HeadUnreachable(excerpt(words, to.headers.values()))

    def _complain(self, to: Address, answer: Answer, what: str) -> NoReturn:
        raise HeadUnreachable(self._words(to, answer, what))

    def _words(self, to: Address, answer: Answer, what: str) -> str:
        said = excerpt(answer.text, to.headers.values())
        return f"{to.url}: {what}: status {answer.status}: {said}"

    def _shown(self, submission: Submission) -> Submission:
        message = excerpt(submission.message, self._jobs.headers.values())
        return Submission(submission.id, submission.state, submission.exit_code, message)


_NOBODY_LISTENS: Final = "connection refused"
"""In the API server's words."""


class _ApiStatus(BaseModel):
    """The API server's own answer, where it could not pass a request on."""

    kind: Literal["Status"]
    message: str = ""


def _path(id: str) -> str:
    return f"{JOBS_PATH}{quote(id, safe='')}"


def _is_unknown(answer: Answer, id: str) -> bool:
    return answer.status == 404 and answer.text.strip() == unknown_words(id)
