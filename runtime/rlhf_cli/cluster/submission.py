"""Send jobs to a cluster: conversion, checks beyond those of the manifest, apply, and wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from rlhf_api.problems import Problem
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.row_sources import DataSource, MixedData
from rlhf_cli.cluster.connect import CALLER
from rlhf_cli.cluster.jobs import Job
from rlhf_cli.cluster.watching import LineDisplay, display, wait_for_end
from rlhf_kube.errors import FieldsConflict
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster, Manifest

BUILTIN_PREFIX = "rlhf_runtime."
"""Entry points with this prefix are in every image."""


def wait_for_jobs(cluster: Cluster, documents: Sequence[Manifest], watch: bool) -> list[Job]:
    """Wait until the jobs have ended; return their last states in the given order."""
    keys = [
        (document["metadata"]["namespace"], document["metadata"]["name"]) for document in documents
    ]
    # A watch covers one namespace, so the namespaces of a file are waited for one after the other.
    ended: dict[tuple[str, str], Job] = {}
    for space in dict.fromkeys(namespace for namespace, _ in keys):
        names = [name for namespace, name in keys if namespace == space]
        with display() if watch else nullcontext(LineDisplay()) as shown:
            jobs = wait_for_end(cluster, space, names, shown)
        ended |= {(space, name): jobs[name] for name in names}
    return [ended[key] for key in keys]


def apply_job(cluster: Cluster, document: Manifest, dry_run: bool, force: bool) -> str:
    """Create or change a job; return a sentence about it.

    Args:
        dry_run: let the API server check it, and store nothing.
        force: take over fields of other managers.

    Raises:
        Refused: the API server rejects it.
    """
    # An apply does not tell whether it changed anything; the generation does.
    before = _generation(cluster, document)
    try:
        stored = cluster.apply(document, dry_run=dry_run, force=force)
    except FieldsConflict as error:
        # `rlhf suspend` sets spec.suspend by a patch. The API server counts that as another manager
        # of the same name, whose fields are taken over without asking.
        if error.managers != {CALLER.name}:
            raise
        stored = cluster.apply(document, dry_run=dry_run, force=True)
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    done = "created" if before is None else "changed"
    done = "unchanged" if stored["metadata"]["generation"] == before else done
    note = " (--dry-run: nothing was stored)" if dry_run else ""
    return f"{Kind.JOB.kind.lower()}/{name} {done} in {namespace}{note}"


def _generation(cluster: Cluster, document: Manifest) -> int | None:
    """The generation of a job's spec; None if the job does not exist."""
    meta = document["metadata"]
    stored = cluster.get(Kind.JOB, meta["namespace"], meta["name"])
    return None if stored is None else int(stored["metadata"]["generation"])


def submitted_document(job: RLHFJob, namespace: str) -> Manifest:
    """The object to send: manifest and overrides, without defaults."""
    document: Manifest = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["metadata"]["namespace"] = namespace
    return document


def cluster_problems(job: RLHFJob, namespace: str | None, file: str) -> Iterator[Problem]:
    """Problems of a valid manifest that only a cluster has. Pure."""
    # The CRD has no rule for these, because the same manifests are valid for `rlhf run`.
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
            "on a cluster all pods of a job mount one volume for its files",
            got=storage.uri,
            allowed="persistentVolumeClaim",
            do="name a claim of access mode ReadWriteMany, or leave storage to the chart's default",
            file=file,
        )
    own = job.metadata.namespace
    if namespace is not None and own is not None and own != namespace:
        yield Problem(
            ("metadata", "namespace"),
            "differs from the requested namespace",
            got=own,
            allowed=namespace,
            do="remove it, or leave -n out",
            file=file,
        )


def cluster_warnings(job: RLHFJob) -> Iterator[str]:
    """Settings that work under `rlhf run` and may fail on a cluster. Pure."""
    for path, value in _paths(job):
        if not value.startswith("/"):
            yield f"{path}: {value} is relative; on a cluster it means a path in the image"
    # Only a warning: the entry point may be in the user's own image.
    if job.spec.code is None:
        for entrypoint in _entrypoints(job):
            if not entrypoint.startswith(BUILTIN_PREFIX):
                yield f"{entrypoint} must be in the image, because there is no spec.code"


def _paths(job: RLHFJob) -> Iterator[tuple[str, str]]:
    data = job.spec.data
    sources: dict[str, DataSource | None] = {
        "train": data.train,
        "pretraining": data.pretraining,
        "evaluation": data.evaluation,
    }
    for name, source in sources.items():
        for field, path in {} if source is None else source.named_paths.items():
            yield f"spec.data.{name}.{field}", path
        several = source.sources if isinstance(source, MixedData) else None
        for index, one in enumerate(several or ()):
            for field, path in one.named_paths.items():
                yield f"spec.data.{name}.sources[{index}].{field}", path
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
