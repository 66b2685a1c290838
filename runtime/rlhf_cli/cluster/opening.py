"""Open a job's files: through its head pod, at their address, or through a reader pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rlhf_api.on_cluster import RUN_FOLDER
from rlhf_api.spec.cluster import ImageSpec
from rlhf_cli.cluster.errors import NothingToRead
from rlhf_cli.cluster.jobs import Job
from rlhf_cli.cluster.location import UriFolder, find_reader_settings, parse_claim
from rlhf_cli.cluster.pods import is_running
from rlhf_cli.cluster.reader import START_SECONDS, Notify, new_suffix, reader_pod, running_reader
from rlhf_cli.cluster.run_files import RAY_LOGS, PodFiles, RunFiles, UriFiles
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster, Manifest


@dataclass(frozen=True)
class ReadOptions:
    """Options of the user about reading a job's files."""

    image: str | None = None
    """Image of a reader pod. Default: the job's."""
    claim: str | None = None
    """CLAIM or CLAIM/FOLDER. Default: the job's."""
    start_seconds: float = START_SECONDS
    """Start timeout of a reader pod."""


@dataclass(frozen=True)
class JobFiles:
    """A job's files."""

    run: RunFiles
    """The job's folder."""
    ray: RunFiles | None
    """The logs of Ray's head; None after the head is deleted."""


@contextmanager
def open_job_files(
    cluster: Cluster, job: Job, options: ReadOptions, notify: Notify
) -> Iterator[JobFiles]:
    """Open a job's files for the duration of the block.

    Args:
        notify: prints a line for the user.

    Raises:
        NothingToRead: the location of the files, or an image to read them, is unknown.
        ReaderFailed, ExtraMissing: the files cannot be reached.
    """
    # The head is free and sees the newest state. --claim asks for a volume, perhaps another one.
    head = None if options.claim else find_head(cluster, job)
    if head is not None:
        yield _head_files(cluster, head)
        return
    settings = find_reader_settings(cluster, job)
    location = parse_claim(options.claim) if options.claim else settings.location
    if isinstance(location, UriFolder):
        yield JobFiles(UriFiles(location.address), None)
        return
    if location is None:
        raise NothingToRead(_unknown_location_text(job))
    image = _reader_image(job, settings.image, options.image)
    pod = reader_pod(job, location, image, new_suffix(), settings.tolerations)
    with running_reader(cluster, pod, notify, options.start_seconds) as files:
        yield JobFiles(files, None)


def _unknown_location_text(job: Job) -> str:
    phase = job.status.phase
    if job.status.attempts == 0:
        return (
            f"{job.name} has not started, so it has no files: got {phase}, "
            f"{job.status.reason or 'no reason yet'}; `rlhf describe {job.command_arguments}` "
            "shows more. "
            "If an earlier job of this name left files in a volume, give --claim CLAIM/FOLDER"
        )
    return (
        f"the location of the files of {job.name} is unknown: got {phase}, no pod, no "
        "spec.checkpoint.storage and no status.artifacts; if they are in a volume, give --claim "
        "CLAIM/FOLDER"
    )


def find_head(cluster: Cluster, job: Job) -> Manifest | None:
    """The head pod of the job's current cluster, if it runs."""
    if job.status.cluster is None:
        return None
    labels = f"ray.io/cluster={job.status.cluster.name},ray.io/node-type=head"
    pods = cluster.list(Kind.POD, job.namespace, labels=labels)
    return next((pod for pod in pods if is_running(pod)), None)


def _head_files(cluster: Cluster, pod: Manifest) -> JobFiles:
    meta, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
    address = (meta["namespace"], meta["name"], container)
    return JobFiles(PodFiles(cluster, *address, RUN_FOLDER), PodFiles(cluster, *address, RAY_LOGS))


def _reader_image(job: Job, default: ImageSpec | None, requested: str | None) -> ImageSpec:
    if requested is not None:
        return (default or ImageSpec(runtime=requested)).model_copy(update={"runtime": requested})
    if default is None:
        raise NothingToRead(
            f"no image is known to read the volume of {job.name}: got no spec.image and "
            "no manifest with the chart's default; give --image, any image with a shell"
        )
    return default
