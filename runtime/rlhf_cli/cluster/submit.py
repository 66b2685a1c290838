"""`rlhf submit`: jobs of a file to the cluster, after the same checks as `rlhf validate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import typer

from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.spec.data import DataSource
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.cluster.client import FIELD_MANAGER, Cluster, Object
from rlhf_cli.cluster.connect import require_version
from rlhf_cli.cluster.errors import FieldsConflict, ObjectNotFound
from rlhf_cli.cluster.jobs import Job
from rlhf_cli.cluster.watching import Lines, display, wait_for_end, worst
from rlhf_kube.kinds import Kind

OURS = "rlhf_runtime."
"""Entry points that every image has begin so."""


def submit_command(
    cluster: Cluster,
    file: Path,
    jobs: Sequence[RLHFJob],
    namespace: str | None,
    *,
    dry_run: bool,
    force: bool,
    wait: bool,
    watch: bool,
) -> None:
    """Submit checked jobs; wait for them where that is wanted.

    Args:
        file: where they come from, for messages.
        namespace: the one that was asked for; None: each job's own, else the cluster's.
        dry_run: let the API server check them, and keep nothing.
        force: take over fields that others have set.
        wait: until they have ended, with a line for each change.
        watch: the same, drawn in a terminal.

    Raises:
        ManifestError: a job is not for clusters, or for another namespace.
        ObjectRefused: the API server refuses one; those before it are submitted.
        typer.Exit: jobs that were waited for have ended; with the exit code of their worst.
    """
    problems = [each for job in jobs for each in cluster_problems(job, namespace, str(file))]
    if problems:
        raise ManifestError(problems)
    require_version(cluster)
    for job in jobs:
        for warning in cluster_warnings(job):
            typer.echo(f"{job.name}: {warning}", err=True)
    documents = [document_of(job, job.metadata.namespace or cluster.namespace) for job in jobs]
    for document in documents:
        _submit(cluster, document, dry_run, force)
    if dry_run:
        return
    if not (wait or watch):
        for meta in (each["metadata"] for each in documents):
            arguments = f"{meta['name']} -n {meta['namespace']}"
            typer.echo(f"Follow it: rlhf status {arguments} --watch", err=True)
        return
    raise typer.Exit(worst(_ended(cluster, documents, watch)))


def _ended(cluster: Cluster, documents: Sequence[Object], watch: bool) -> list[Job]:
    """Wait for jobs; they in the order of the file, as they are at the end."""
    places = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in documents]
    ended: dict[tuple[str, str], Job] = {}
    for space in dict.fromkeys(namespace for namespace, _ in places):
        names = [name for namespace, name in places if namespace == space]
        with display() if watch else nullcontext(Lines()) as shown:
            there = wait_for_end(cluster, space, names, shown)
        ended |= {(space, name): there[name] for name in names}
    return [ended[place] for place in places]


def _submit(cluster: Cluster, document: Object, dry_run: bool, force: bool) -> None:
    before = _generation(cluster, document)
    try:
        stored = cluster.apply(Kind.JOB, document, dry_run=dry_run, force=force)
    except FieldsConflict as error:
        if error.managers != {FIELD_MANAGER}:
            raise
        stored = cluster.apply(Kind.JOB, document, dry_run=dry_run, force=True)
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    done = "created" if before is None else "changed"
    done = "unchanged" if stored["metadata"]["generation"] == before else done
    note = " (--dry-run: nothing was done)" if dry_run else ""
    typer.echo(f"{Kind.JOB.kind.lower()}/{name} {done} in {namespace}{note}")


def _generation(cluster: Cluster, document: Object) -> int | None:
    """Which version of its spec a job has; None where there is no such job yet."""
    meta = document["metadata"]
    try:
        found = cluster.get(Kind.JOB, meta["namespace"], meta["name"])
    except ObjectNotFound:
        return None
    generation: int = found["metadata"]["generation"]
    return generation


def document_of(job: RLHFJob, namespace: str) -> Object:
    """What is sent: the manifest as written, with overrides, without what is left to defaults."""
    document: Object = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["metadata"]["namespace"] = namespace
    return document


def cluster_problems(job: RLHFJob, namespace: str | None, file: str) -> Iterator[Problem]:
    """What a valid manifest has that no cluster can do. Pure."""
    if job.spec.code is not None and job.spec.code.local is not None:
        yield Problem(
            ("spec", "code", "local"),
            "a folder of this machine, which no cluster can read",
            got=job.spec.code.local,
            allowed="configMap or git, or code in the image",
            do="put the files into a ConfigMap: kubectl create configmap NAME --from-file=FOLDER",
            file=file,
        )
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.uri is not None:
        yield Problem(
            ("spec", "checkpoint", "storage", "uri"),
            "on a cluster a job's files are on one volume that all its pods mount",
            got=storage.uri,
            allowed="persistentVolumeClaim",
            do="name a claim of access mode ReadWriteMany, or leave storage to the chart's default",
            file=file,
        )
    own = job.metadata.namespace
    if namespace is not None and own is not None and own != namespace:
        yield Problem(
            ("metadata", "namespace"),
            "another namespace than the one that was asked for",
            got=own,
            allowed=namespace,
            do="remove it, or leave -n out",
            file=file,
        )


def cluster_warnings(job: RLHFJob) -> Iterator[str]:
    """What works under `rlhf run` and may not do so on a cluster. Pure."""
    for path, value in _paths(job):
        if not value.startswith("/"):
            yield f"{path}: {value} is relative; on a cluster it is looked up in the image"
    if job.spec.code is None:
        for entrypoint in _entrypoints(job):
            if not entrypoint.startswith(OURS):
                yield f"{entrypoint} has to be in the image: there is no spec.code"


def _paths(job: RLHFJob) -> Iterator[tuple[str, str]]:
    data = job.spec.data
    sources: dict[str, DataSource | None] = {
        "train": data.train,
        "pretraining": data.pretraining,
        "evaluation": data.evaluation,
    }
    for name, source in sources.items():
        if source is not None and source.path is not None:
            yield f"spec.data.{name}.path", source.path
    for role, model in job.spec.models.items():
        if model.source.path is not None:
            yield f"spec.models.{role}.source.path", model.source.path
    for index, reward in enumerate(job.spec.rewards):
        if reward.model is not None and reward.model.path is not None:
            yield f"spec.rewards[{index}].model.path", reward.model.path


def _entrypoints(job: RLHFJob) -> Iterator[str]:
    for reward in job.spec.rewards:
        if reward.function is not None:
            yield reward.function.entrypoint
    custom = job.spec.algorithm.custom
    if custom is not None:
        yield custom.entrypoint
