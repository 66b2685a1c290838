"""The operator's settings: one YAML file, written by the chart."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import yaml
from pydantic import Field, ValidationError

from rlhf_api.base import (
    AbsolutePath,
    Contract,
    Count,
    Name,
    ObjectName,
    PositiveFloat,
    Text,
)
from rlhf_api.rules import Rule, Violation, violation_of
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.spec.cluster import ImageSpec
from rlhf_api.spec.pod.pool_rules import PodLayers, pod_problems
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_api.spec.resources import NodePools, PodResources
from rlhf_operator.decide.settings import Settings

SETTINGS = Settings()


class BadConfig(Exception):
    """The settings cannot be used; it ends the operator's process."""


class HeadAccess(StrEnum):
    """The route to the heads of clusters."""

    DIRECT = "direct"
    """By the addresses of their pods; the operator is a pod of the cluster."""
    PROXY = "proxy"
    """Through the API server, from anywhere."""
    TEMPLATE = "template"
    """By headUrl."""


class LogFormat(StrEnum):
    """Format of log lines."""

    JSON = "json"
    """One JSON object per line."""
    TEXT = "text"
    """For people."""


class KeySecret(Contract):
    """The Secret with the operator's own key."""

    name: ObjectName = "rlhf-operator-key"
    """The Secret's name."""


def _pods_fit_together(defaults: DefaultValues) -> Iterator[Violation]:
    shared = (defaults.pod, ("pod",))
    for own, path in ((defaults.head_pod, "headPod"), (defaults.worker_pod, "workerPod")):
        for problem in pod_problems(PodLayers(*shared, own, (path,))):
            yield violation_of(problem)


class DefaultValues(Contract):
    """Values for jobs that do not set them."""

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
    pod: PodTemplate = PodTemplate()
    """spec.resources.pod: fields of all pods."""
    head_pod: PodTemplate = PodTemplate()
    """spec.resources.headPod: fields of head pods."""
    worker_pod: PodTemplate = PodTemplate()
    """Fields of workers' pods, as of pod of every node pool."""

    validations: ClassVar = (
        Rule(
            holds="",  # in no definition
            what="a field of a pod that does not fit the others",
            do="change one of them",
            check=_pods_fit_together,
        ),
    )


class JobDefaults(DefaultValues):
    """Values for jobs, and others for those of some namespaces."""

    namespaces: Annotated[dict[Name, DefaultValues], Field(max_length=1024)] = {}
    """By namespace, values that replace those for all jobs, each as a whole."""

    def for_namespace(self, namespace: str) -> DefaultValues:
        """Return the values for jobs of a namespace."""
        own = self.namespaces.get(namespace)
        if own is None:
            return self
        update = {name: getattr(own, name) for name in own.model_fields_set}
        return self.model_copy(update=update)


class PodPolicy(Contract):
    """Fields of pods that only some clusters let their users set."""

    host_paths: Annotated[tuple[AbsolutePath, ...], Field(max_length=64)] = ()
    """Folders of nodes that jobs may mount, with everything below them."""
    service_account_names: Annotated[tuple[ObjectName, ...], Field(max_length=64)] = ()
    """Service accounts that pods of jobs may have."""
    extra_containers: bool = False
    """If true, jobs may have initContainers and sidecars."""


class Bounds(Contract):
    """Limits of waits that may never end, in seconds."""

    lost_node_seconds: PositiveFloat = SETTINGS.lost_pod_seconds
    """A pod that still exists this long after its grace period is on a lost node: its job gets
    another cluster. Kubernetes itself deletes a lost node's pods after five minutes."""
    dead_head_seconds: PositiveFloat = SETTINGS.dead_head_seconds
    """A head that neither the operator nor its kubelet reaches for this long is dead: its job gets
    another cluster."""
    frozen_report_seconds: PositiveFloat = SETTINGS.frozen_report_seconds
    """A driver that reports nothing for this long, not even a heartbeat, is started again."""
    room_seconds: PositiveFloat = SETTINGS.partial_cluster_seconds
    """Limit for some pods of a job to occupy devices while others cannot be scheduled, plus up to
    half as much again. Then all devices are released, and requested again later."""


class OperatorConfig(Contract):
    """All of the operator's settings."""

    namespaces: Annotated[tuple[Name, ...], Field(max_length=1024)] = ()
    """Namespaces whose jobs this operator manages. Default: all."""
    operator_namespace: Name | None = None
    """Namespace of the operator's own pods, which jobs' NetworkPolicies admit. Default: the
    environment's POD_NAMESPACE."""
    job_defaults: JobDefaults = JobDefaults()
    """Values for jobs that do not set them."""
    pod_policy: PodPolicy = PodPolicy()
    """Fields of pods that jobs may set only where this says so. Defaults may set all of them."""
    key_secret: KeySecret = KeySecret()
    """Secret in the operator's own namespace with the key from which clusters' tokens derive."""
    lease_name: ObjectName = "rlhf-operator"
    """Lease in the operator's own namespace that elects the replica that acts."""
    bounds: Bounds = Bounds()
    """Limits of waits that may never end."""
    head_access: HeadAccess = HeadAccess.DIRECT
    """Route to heads: direct, proxy or template."""
    head_url: Text | None = None
    """With headAccess template: a URL with {namespace}, {cluster} and {port}."""
    reconcile_workers: Annotated[int, Field(ge=1, le=256)] = 16
    """Jobs that are reconciled at the same time."""
    planner_processes: Annotated[int, Field(ge=1, le=64)] = 2
    """Plans that are made at the same time, each in its own process."""
    poll_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 5.0
    """Seconds between two requests to a running driver. With more than 250 jobs that have not ended
    it is longer, in proportion, up to a minute."""
    port: Count = 8080
    """Port of /metrics, /healthz and /readyz."""
    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$", max_length=8)] = "info"
    """debug, info, warning or error."""
    log_format: LogFormat = LogFormat.JSON
    """json or text."""
    job_log_format: LogFormat = LogFormat.TEXT
    """The same for drivers and workers of jobs: json or text."""


def load_config(file: Path | None) -> OperatorConfig:
    """Read the settings from a file. None: the defaults.

    Raises:
        BadConfig: the file cannot be read, or a field is invalid.
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
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()
        )
        raise BadConfig(f"{file}: {problems}") from error
