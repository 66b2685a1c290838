"""Ray's Jobs API of a head pod, asked from the node with the cluster's token or without."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
# The cluster is on this machine: no proxy of the environment's leads to it.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class JobsApi:
    """The API at a pod's address."""

    address: str
    token: str

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What it answers, from JSON; HTTPError when it refuses."""
        request = urllib.request.Request(
            f"http://{self.address}:8265/api/jobs/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
        )
        with OPENER.open(request, timeout=30) as answer:
            return json.load(answer)

    def submit(self, submission: str, entrypoint: str) -> None:
        self.ask("", {"submission_id": submission, "entrypoint": entrypoint})

    def status(self, submission: str) -> str:
        return str(self.ask(submission)["status"])

    def log(self, submission: str) -> str:
        return str(self.ask(f"{submission}/logs")["logs"])
