"""How a job's files are reached: by its head, by its address from here, or by a reader pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlhf_api.on_cluster import RUN_FOLDER
from rlhf_api.spec.cluster import ImageSpec
from rlhf_cli.cluster.client import Cluster, Object
from rlhf_cli.cluster.errors import NothingToRead
from rlhf_cli.cluster.jobs import Job
from rlhf_cli.cluster.place import UriFolder, job_in_force, read_claim
from rlhf_cli.cluster.pod_problems import is_running
from rlhf_cli.cluster.reader import START_SECONDS, Tell, new_suffix, reader
from rlhf_cli.cluster.reader_pod import reader_pod
from rlhf_cli.cluster.run_files import RAY_LOGS, PodFiles, RunFiles
from rlhf_cli.cluster.uri_files import UriFiles
from rlhf_kube.kinds import Kind


@dataclass(frozen=True)
class Reading:
    """What a user may say about how files are read; else it is found out."""

    image: str | None = None
    """What a reader pod runs. Default: the job's image."""
    claim: str | None = None
    """CLAIM or CLAIM/FOLDER. Default: the job's."""
    start_seconds: float = START_SECONDS
    """How long a reader pod may take to start."""


@dataclass(frozen=True)
class Opened:
    """A job's files."""

    run: RunFiles
    """The job's folder."""
    ray: RunFiles | None
    """The logs of Ray's head, while there is one."""


@contextmanager
def opened_run(cluster: Cluster, job: Job, reading: Reading, tell: Tell) -> Iterator[Opened]:
    """The files of a job, while they can be reached.

    Args:
        tell: shows a line to the user.

    Raises:
        NothingToRead: where they lie, or what could read them, cannot be found out.
        ReaderFailed, ExtraMissing: they cannot be reached from here.
    """
    head = None if reading.claim else find_head(cluster, job)
    if head is not None:
        yield _of_head(cluster, head)
        return
    found = job_in_force(cluster, job)
    place = read_claim(reading.claim) if reading.claim else found.place
    if isinstance(place, UriFolder):
        yield Opened(UriFiles(place.address), None)
        return
    if place is None:
        raise NothingToRead(_unplaced(job))
    image = _image(job, found.image, reading.image)
    pod = reader_pod(job, place, image, new_suffix(), found.tolerations)
    with reader(cluster, pod, tell, reading.start_seconds) as files:
        yield Opened(files, None)


def _unplaced(job: Job) -> str:
    """Why nobody knows where a job's files lie."""
    phase = job.status.phase
    if job.status.attempts == 0:
        return (
            f"{job.name} has not begun, so there is nothing to read: got {phase}, "
            f"{job.status.reason or 'no reason yet'}; `rlhf describe {job.arguments}` says more. "
            "If an earlier job of this name left files in a volume, give --claim CLAIM/FOLDER"
        )
    return (
        f"where the files of {job.name} lie is not known: got {phase}, no pod, no "
        "spec.checkpoint.storage and no status.artifacts; if they lie in a volume, give --claim "
        "CLAIM/FOLDER"
    )


def find_head(cluster: Cluster, job: Job) -> Object | None:
    """The head's pod of the cluster that a job has now, if commands can be run in it."""
    if job.status.cluster is None:
        return None
    labels = f"ray.io/cluster={job.status.cluster.name},ray.io/node-type=head"
    pods = cluster.list(Kind.POD, job.namespace, labels=labels).items
    return next((pod for pod in pods if is_running(pod)), None)


def _of_head(cluster: Cluster, pod: Object) -> Opened:
    meta, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
    where = (meta["namespace"], meta["name"], container)
    return Opened(PodFiles(cluster, *where, RUN_FOLDER), PodFiles(cluster, *where, RAY_LOGS))


def _image(job: Job, usual: ImageSpec | None, named: str | None) -> ImageSpec:
    if named is not None:
        return (usual or ImageSpec(runtime=named)).model_copy(update={"runtime": named})
    if usual is None:
        raise NothingToRead(
            f"which image can read the volume of {job.name} is not known: got no spec.image and "
            "no manifest with the chart's default; give --image: any that has a shell will do"
        )
    return usual
