"""kubectl at one cluster; it reads nothing of the user's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_kube.api_server import ApiServer

from .devcluster import output_of


@dataclass(frozen=True)
class Kubectl:
    """A program, the cluster that it talks to, and where it keeps what it learns of it."""

    program: Path
    kubeconfig: Path
    cache: Path

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """What it prints; an error with what it says when it fails."""
        command = [str(self.program), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(
            command,
            env={**os.environ, "KUBERC": "off", "KUBECACHEDIR": str(self.cache)},
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return output_of(done)

    @contextmanager
    def api_server(self, as_user: str = "") -> Iterator[ApiServer]:
        """The cluster without kubectl, which reads all kinds again after one of them has changed.

        Args:
            as_user: whose rights count; empty: the kubeconfig's user.
        """
        server = ApiServer.from_kubeconfig((self.kubeconfig,), None, "tests", 1)
        if as_user:
            server.headers["Impersonate-User"] = as_user
        try:
            yield server
        finally:
            server.close()

    def apply(self, namespace: str, manifest: Mapping[str, Any]) -> None:
        self.send("apply", namespace, manifest)

    def send(self, verb: str, namespace: str, manifest: Mapping[str, Any], *flags: str) -> None:
        """Create, apply or replace an object."""
        words = (verb, f"--namespace={namespace}", "--filename=-", *flags)
        self(*words, stdin=json.dumps(manifest))

    def get(self, namespace: str, *arguments: str) -> Any:
        """An object, or a list of objects in `items`."""
        return json.loads(self("get", f"--namespace={namespace}", "--output=json", *arguments))

    def wait(self, namespace: str, condition: str, *objects: str, seconds: int = 60) -> None:
        """Until `--for=condition` holds for all of them; they need not exist yet."""
        limits = (f"--namespace={namespace}", f"--timeout={seconds}s", *objects)
        self("wait", "--for=create", *limits)
        self("wait", f"--for={condition}", *limits)
