"""Location of a job's folder, and what a pod needs to read it.

What the user's manifest leaves out is in the manifest of the job's pods: the operator writes it,
with the chart's defaults, to a ConfigMap. status.artifacts names the location, too. Pure but for
`find_reader_settings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml
from pydantic import ValidationError

from rlhf_api.on_cluster import JOB_LABEL, MANIFEST
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.pod.scheduling import Toleration
from rlhf_api.spec.resources import ResourcesSpec
from rlhf_api.status import ArtifactStatus, DefaultsStatus
from rlhf_cli.cluster.errors import NothingToRead
from rlhf_cli.cluster.jobs import Job
from rlhf_kube.errors import KubeError
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster

CLAIM_SCHEME: Final = "pvc://"
"""Prefix of addresses in a volume: pvc://CLAIM/FOLDER/model."""
MODEL: Final = "model"
REPORT: Final = "report.html"
_MANIFEST_KEY: Final = MANIFEST.rpartition("/")[2]


@dataclass(frozen=True)
class ClaimFolder:
    """A folder of a volume claim in the job's namespace."""

    claim: str
    folder: str
    """Without leading or trailing slashes; empty for the volume's root."""

    def __str__(self) -> str:
        return f"{CLAIM_SCHEME}{self.claim}/{self.folder}".rstrip("/")


@dataclass(frozen=True)
class UriFolder:
    """A folder that fsspec reads."""

    address: str
    """Without a trailing slash."""

    def __str__(self) -> str:
        return self.address


Location = ClaimFolder | UriFolder


@dataclass(frozen=True)
class ReaderSettings:
    """Parts of a job's manifest that a reader pod needs."""

    location: Location | None
    image: ImageSpec | None
    tolerations: tuple[Toleration, ...]
    """Tolerations of the head and all node pools."""


def find_reader_settings(cluster: Cluster, job: Job) -> ReaderSettings:
    """Read the settings of a job, with the chart's defaults if they can be read."""
    spec = job.spec
    # Without that ConfigMap, or without the right to read it, the defaults stay unknown.
    with suppress(KubeError, KeyError, TypeError, yaml.YAMLError):
        spec = _operator_spec(cluster, job) or spec
    settings = reader_settings(job.name, spec, job.status.artifacts)
    # That ConfigMap has no templates of pods: the job has its own, the status those of the chart.
    tolerations = (*settings.tolerations, *_tolerations_of_pods(job))
    return replace(settings, tolerations=tuple(dict.fromkeys(tolerations)))


def _tolerations_of_pods(job: Job) -> Iterator[Toleration]:
    defaults = job.status.defaults or DefaultsStatus()
    for pod in (defaults.pod, defaults.head_pod, defaults.worker_pod):
        yield from () if pod is None else pod.tolerations
    for layers in _resources(job.spec).pod_layers():
        yield from layers.merged.tolerations


def _resources(spec: Mapping[str, Any]) -> ResourcesSpec:
    # A manifest of another version may not validate; then the pod gets no tolerations.
    with suppress(ValidationError):
        return ResourcesSpec.model_validate(spec.get("resources") or {}, extra="ignore")
    return ResourcesSpec()


def _operator_spec(cluster: Cluster, job: Job) -> Mapping[str, Any]:
    """The spec in the newest ConfigMap that the operator created for the job; else empty."""
    documents = cluster.list(Kind.CONFIG_MAP, job.namespace, labels=f"{JOB_LABEL}={job.name}")
    # The job has other ConfigMaps, too; each attempt has one with a manifest.
    maps = [item for item in documents if _MANIFEST_KEY in (item.get("data") or {})]
    newest = max(maps, key=lambda item: str(item["metadata"]["creationTimestamp"]), default=None)
    if newest is None:
        return {}
    spec: Mapping[str, Any] = yaml.safe_load(newest["data"][_MANIFEST_KEY])["spec"]
    return spec


def reader_settings(
    name: str, spec: Mapping[str, Any], artifacts: ArtifactStatus
) -> ReaderSettings:
    """Derive the reader's settings from a spec.

    Args:
        name: the job's name.
        spec: by wire names, with the chart's defaults if known.
        artifacts: from the job's status.
    """
    image = spec.get("image")
    # Of all pools: the volume may be reachable from the nodes of one pool only.
    tolerations = (taint for pool in _resources(spec).node_pools for taint in pool.tolerations)
    return ReaderSettings(
        location=_location_from_artifacts(artifacts) or _location_from_spec(name, spec),
        image=None if not image else ImageSpec.model_validate(image, extra="ignore"),
        tolerations=tuple(dict.fromkeys(tolerations)),
    )


def parse_claim(text: str) -> ClaimFolder:
    """Parse CLAIM or CLAIM/FOLDER.

    Raises:
        NothingToRead: the text is neither.
    """
    claim, _, folder = text.removeprefix(CLAIM_SCHEME).partition("/")
    if not claim:
        raise NothingToRead(f"not a claim: got {text!r}, allowed CLAIM or CLAIM/FOLDER")
    return ClaimFolder(claim, folder.strip("/"))


def _location_from_artifacts(artifacts: ArtifactStatus) -> Location | None:
    """The folder that contains the model or the report."""
    for address, name in ((artifacts.model, MODEL), (artifacts.report, REPORT)):
        folder, _, last = (address or "").rstrip("/").rpartition("/")
        # Only the layout that this version writes: the folder, then model or report.
        if last == name and "://" in folder:
            if folder.startswith(CLAIM_SCHEME):
                return parse_claim(folder)
            return UriFolder(folder)
    return None


def _location_from_spec(name: str, spec: Mapping[str, Any]) -> Location | None:
    document = (spec.get("checkpoint") or {}).get("storage")
    if not document:
        return None
    storage = CheckpointStorage.model_validate(document, extra="ignore")
    claim = storage.persistent_volume_claim
    if claim is not None:
        return ClaimFolder(claim.claim_name, (claim.sub_path or name).strip("/"))
    assert storage.uri is not None
    return UriFolder(storage.uri.rstrip("/"))
