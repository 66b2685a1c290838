"""The operator's settings: one YAML file, written by the chart."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, ValidationError

from rlhf_api.base import Contract, Count, Name, ObjectName, PositiveFloat, Text
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.resources import NodePools, PodResources
from rlhf_operator.decide.settings import Settings
from rlhf_operator.errors import BadConfig

SETTINGS = Settings()


class HeadAccess(StrEnum):
    """How the operator reaches the heads of clusters."""

    DIRECT = "direct"
    """By the addresses of their pods: the operator is a pod of the cluster."""
    PROXY = "proxy"
    """Through the API server, from anywhere."""
    TEMPLATE = "template"
    """By headUrl."""


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    """An object for each line."""
    TEXT = "text"
    """For people."""


class KeySecret(Contract):
    """Where the operator's own key is."""

    name: ObjectName = "rlhf-operator-key"
    """The Secret's name."""


class JobDefaults(Contract):
    """What jobs get that leave it out."""

    image: ImageSpec | None = None
    """spec.image."""
    node_pools: NodePools = ()
    """spec.resources.nodePools."""
    storage: CheckpointStorage | None = None
    """spec.checkpoint.storage."""
    head: PodResources = PodResources(cpu="1", memory="4Gi")
    """Requests of the head's pod."""
    worker: PodResources = PodResources()
    """Requests of a worker's pod besides its devices. Default: none, and no limit."""


class Bounds(Contract):
    """How long the operator waits, in seconds, for what may never come."""

    lost_node_seconds: PositiveFloat = SETTINGS.lost_pod_seconds
    """A pod that is still there so long after it had to be gone is on a lost node: its job gets
    another cluster. Kubernetes itself tells a lost node's pods to go after five minutes."""
    dead_head_seconds: PositiveFloat = SETTINGS.dead_head_seconds
    """A head that neither the operator nor its kubelet has reached for so long is dead: its job
    gets another cluster."""
    frozen_report_seconds: PositiveFloat = SETTINGS.frozen_report_seconds
    """A driver that has told nothing for so long, not even that it waits, is started again."""
    room_seconds: PositiveFloat = SETTINGS.room_seconds
    """So long, or up to half as long again, some pods of a job may hold devices while others find
    no room; then all are given back, and asked for again later."""


class OperatorConfig(Contract):
    """All of the operator's settings."""

    namespaces: Annotated[tuple[Name, ...], Field(max_length=1024)] = ()
    """Namespaces whose jobs are this operator's. Default: all."""
    operator_namespace: Name | None = None
    """Where the operator's own pods are, which jobs' NetworkPolicies let in. Default: the
    environment's POD_NAMESPACE."""
    job_defaults: JobDefaults = JobDefaults()
    """What jobs get that leave it out."""
    key_secret: KeySecret = KeySecret()
    """The Secret in the operator's own namespace from whose key the clusters' tokens are made."""
    lease_name: ObjectName = "rlhf-operator"
    """The Lease in the operator's own namespace that tells which of its replicas acts."""
    bounds: Bounds = Bounds()
    """How long it waits for what may never come."""
    head_access: HeadAccess = HeadAccess.DIRECT
    """How heads are reached: direct, proxy or template."""
    head_url: Text | None = None
    """With headAccess template: a URL with {namespace}, {cluster} and {port}."""
    reconcile_workers: Annotated[int, Field(ge=1, le=256)] = 16
    """Jobs that are looked at at the same time."""
    planner_processes: Annotated[int, Field(ge=1, le=64)] = 2
    """Plans that are made at the same time."""
    poll_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 5.0
    """From one look at a running driver to the next."""
    port: Count = 8080
    """Of /metrics, /healthz and /readyz."""
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$", max_length=8)] = "info"
    """debug, info, warning or error."""
    log_format: LogFormat = LogFormat.JSON
    """json or text."""


def load_config(file: Path | None) -> OperatorConfig:
    """The settings in a file; without one the defaults.

    Raises:
        BadConfig: it cannot be read, or says something that is not allowed; with the fields.
    """
    if file is None:
        return OperatorConfig()
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        return OperatorConfig.model_validate(document)
    except (OSError, yaml.YAMLError) as error:
        raise BadConfig(f"{file}: {error}") from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
        raise BadConfig(f"{file}: {problems}") from error
