"""Where a job's folder lies, and with which image a pod can read it. Pure but for `job_in_force`.

What the manifest leaves out, the chart's defaults decide: they stand in the manifest that the
operator gives to the job's pods. What a job says that it leaves (status.artifacts) names it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import yaml
from pydantic import ValidationError

from rlhf_api.on_cluster import JOB_LABEL, MANIFEST
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.resources import ResourcesSpec, Toleration
from rlhf_api.status import ArtifactStatus
from rlhf_cli.cluster.client import Cluster
from rlhf_cli.cluster.errors import ClusterError, NothingToRead
from rlhf_cli.cluster.jobs import Job
from rlhf_kube.kinds import Kind

CLAIM_SCHEME: Final = "pvc://"
"""Begins addresses in status.artifacts that lie in a volume: pvc://CLAIM/FOLDER/model."""
MODEL: Final = "model"
REPORT: Final = "report.html"
_MANIFEST_KEY: Final = MANIFEST.rpartition("/")[2]


@dataclass(frozen=True)
class ClaimFolder:
    """A folder of a volume claim in the job's namespace."""

    claim: str
    folder: str
    """Without a slash at its ends; empty for the volume's root."""

    def __str__(self) -> str:
        return f"{CLAIM_SCHEME}{self.claim}/{self.folder}".rstrip("/")


@dataclass(frozen=True)
class UriFolder:
    """A folder that fsspec finds by its address."""

    address: str
    """Without a slash at its end."""

    def __str__(self) -> str:
        return self.address


Place = ClaimFolder | UriFolder


@dataclass(frozen=True)
class InForce:
    """What a reader has to know of a job's manifest."""

    place: Place | None
    image: ImageSpec | None
    tolerations: tuple[Toleration, ...]
    """Of all its node pools: its volume may only be reached from their nodes."""


def job_in_force(cluster: Cluster, job: Job) -> InForce:
    """What holds for a job, with the chart's defaults as far as they can be found."""
    spec = job.spec
    with suppress(ClusterError, KeyError, TypeError, yaml.YAMLError):  # then without defaults
        spec = _spec_in_force(cluster, job) or spec
    return in_force(job.name, spec, job.status.artifacts)


def _spec_in_force(cluster: Cluster, job: Job) -> Mapping[str, Any]:
    """The spec that the operator gave to the job's pods, the newest."""
    found = cluster.list(Kind.CONFIG_MAP, job.namespace, labels=f"{JOB_LABEL}={job.name}").items
    maps = [each for each in found if _MANIFEST_KEY in (each.get("data") or {})]
    newest = max(maps, key=lambda each: str(each["metadata"]["creationTimestamp"]), default=None)
    if newest is None:
        return {}
    spec: Mapping[str, Any] = yaml.safe_load(newest["data"][_MANIFEST_KEY])["spec"]
    return spec


def in_force(name: str, spec: Mapping[str, Any], artifacts: ArtifactStatus) -> InForce:
    """Read what a reader needs.

    Args:
        name: the job's.
        spec: by wire names, with the chart's defaults where they are known.
        artifacts: what the job says that it leaves.
    """
    image, pools = spec.get("image"), ResourcesSpec()
    with suppress(ValidationError):
        pools = ResourcesSpec.model_validate(spec.get("resources") or {}, extra="ignore")
    tolerations = (each for pool in pools.node_pools for each in pool.tolerations)
    return InForce(
        place=_of_artifacts(artifacts) or _of_spec(name, spec),
        image=None if not image else ImageSpec.model_validate(image, extra="ignore"),
        tolerations=tuple(dict.fromkeys(tolerations)),
    )


def read_claim(text: str) -> ClaimFolder:
    """Read CLAIM or CLAIM/FOLDER.

    Raises:
        NothingToRead: it is neither.
    """
    claim, _, folder = text.removeprefix(CLAIM_SCHEME).partition("/")
    if not claim:
        raise NothingToRead(f"not a claim: got {text!r}, allowed CLAIM or CLAIM/FOLDER")
    return ClaimFolder(claim, folder.strip("/"))


def _of_artifacts(artifacts: ArtifactStatus) -> Place | None:
    """The folder in which model and report lie."""
    for address, name in ((artifacts.model, MODEL), (artifacts.report, REPORT)):
        folder, _, last = (address or "").rstrip("/").rpartition("/")
        if last == name and "://" in folder:
            if folder.startswith(CLAIM_SCHEME):
                return read_claim(folder)
            return UriFolder(folder)
    return None


def _of_spec(name: str, spec: Mapping[str, Any]) -> Place | None:
    document = (spec.get("checkpoint") or {}).get("storage")
    if not document:
        return None
    storage = CheckpointStorage.model_validate(document, extra="ignore")
    claim = storage.persistent_volume_claim
    if claim is not None:
        return ClaimFolder(claim.claim_name, (claim.sub_path or name).strip("/"))
    assert storage.uri is not None
    return UriFolder(storage.uri.rstrip("/"))
