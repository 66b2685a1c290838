"""The life of a reader pod: made, waited for, and deleted whatever happens."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rlhf_api.on_cluster import RUN_FOLDER
from rlhf_cli.cluster.client import Cluster, Object
from rlhf_cli.cluster.errors import ClusterError, ObjectNotFound, ReaderFailed
from rlhf_cli.cluster.pod_problems import is_hopeless, is_running, pod_problems
from rlhf_cli.cluster.reader_pod import CONTAINER, READER_LABEL
from rlhf_cli.cluster.run_files import PodFiles
from rlhf_kube.kinds import Kind

START_SECONDS = 300.0
"""How long a reader pod may take to start: its image may have to be pulled."""
HOPELESS_SECONDS = 20.0
"""How long a problem that seldom goes away may last: pulling is tried more than once."""
LOOK_SECONDS = 0.5
Tell = Callable[[str], None]


def new_suffix() -> str:
    """For a pod's name."""
    return secrets.token_hex(3)


@contextmanager
def reader(
    cluster: Cluster, pod: Object, tell: Tell, start_seconds: float = START_SECONDS
) -> Iterator[PodFiles]:
    """The files that a reader pod sees, while it lives.

    It is deleted at the end, also on Ctrl-C and SIGTERM, even if it was not made for sure.

    Args:
        pod: its manifest (`reader_pod`).
        tell: shows a line to the user.
        start_seconds: how long it may take to start.

    Raises:
        ReaderFailed: it did not start; the message says why.
        ObjectRefused: a policy or quota is against it.
    """
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    with _ended_by_signals():
        try:
            tell(f"reading the volume by pod {name} in {namespace}")
            cluster.create(Kind.POD, pod)
            _wait(cluster, namespace, name, start_seconds, tell)
            yield PodFiles(cluster, namespace, name, CONTAINER, RUN_FOLDER)
        finally:
            _delete(cluster, namespace, name, tell)


def _wait(cluster: Cluster, namespace: str, name: str, start_seconds: float, tell: Tell) -> None:
    """Wait until it runs; what keeps it from that is told once."""
    begin, hopeless_since, told = time.monotonic(), None, set[str]()
    while True:
        pod, now = cluster.get(Kind.POD, namespace, name), time.monotonic()
        if is_running(pod):
            return
        for problem in pod_problems(pod):
            if problem not in told:
                tell(f"it does not start yet: {problem}")
                told.add(problem)
        hopeless_since = (hopeless_since or now) if is_hopeless(pod) else None
        given_up = hopeless_since is not None and now - hopeless_since > HOPELESS_SECONDS
        if given_up or now - begin > start_seconds:
            phase = (pod.get("status") or {}).get("phase", "Pending")
            problems = "; ".join(pod_problems(pod)) or f"it is {phase}"
            raise ReaderFailed(
                f"the pod that reads the job's volume did not start within {now - begin:.0f} s: "
                f"got {problems}; see to what it says, or give another --image or --claim"
            )
        time.sleep(LOOK_SECONDS)


def _delete(cluster: Cluster, namespace: str, name: str, tell: Tell) -> None:
    """Delete the pod; a failure is told and hides no other."""
    try:
        cluster.delete(Kind.POD, namespace, name, grace_seconds=0)
    except ObjectNotFound:
        return
    except ClusterError as error:
        tell(
            f"pod {name} could not be deleted ({error.reason}): "
            f"kubectl delete pod -n {namespace} -l {READER_LABEL}"
        )


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what was begun is cleaned up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
