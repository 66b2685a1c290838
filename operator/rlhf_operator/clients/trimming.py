"""The parts of clusters and pods that are kept in memory.

Pod templates are most of a RayCluster, and specs most of a pod; no decision depends on them. A
request for the object itself returns all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest


def trimmed(kind: Kind, manifest: Manifest) -> Manifest:
    """Return an object with what `observe/parse.py` reads of it; the rest is left out."""
    spec = manifest.get("spec")
    # Anybody may write these objects: a spec of another type is for the parser to refuse.
    if not isinstance(spec, Mapping):
        return manifest
    if kind is Kind.POD:
        return {**manifest, "spec": {name: spec[name] for name in ("nodeName",) if name in spec}}
    return {**manifest, "spec": _cluster_spec(spec)} if kind is Kind.CLUSTER else manifest


def _cluster_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    kept = dict(spec)
    groups = spec.get("workerGroupSpecs")
    if isinstance(groups, list):
        kept["workerGroupSpecs"] = [_without_template(group) for group in groups]
    head = spec.get("headGroupSpec")
    if isinstance(head, Mapping):
        kept["headGroupSpec"] = {**_without_template(head), "template": _volumes(head)}
    return kept


def _without_template(group: Any) -> Any:
    if not isinstance(group, Mapping):
        return group
    return {name: value for name, value in group.items() if name != "template"}


def _volumes(head: Mapping[str, Any]) -> Any:
    # A volume names the manifest that the cluster runs.
    template = head.get("template")
    spec = template.get("spec") if isinstance(template, Mapping) else None
    if not isinstance(spec, Mapping):
        return {}
    return {"spec": {"volumes": spec.get("volumes")}}
