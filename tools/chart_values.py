"""The values of the chart: names, types, defaults and meaning.

`make generate` writes values.yaml, values.schema.json and the table of the chart's README from
these models. Wire names are those that charts usually have.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rlhf_api.base import Contract, Count, LabelMap, ObjectName, Text
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.spec.cluster import ImageSpec, PullSecrets
from rlhf_api.spec.environment import Environment
from rlhf_api.spec.resources import NodePools, PodResources, Toleration
from rlhf_operator.config import Bounds, OperatorConfig

OPERATOR = OperatorConfig()
"""The operator's own defaults: what the chart writes is what it would do by itself."""

Kubernetes = dict[str, Any]
"""An object of Kubernetes, passed on as it is; the API server checks it."""

NameOrNone = Annotated[str, Field(max_length=53, pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$")]
"""A name, or empty for the one that the chart makes."""


class OperatorImage(Contract):
    """Container image of the operator."""

    repository: Text = "localhost/rlhf-operator"
    """Where the image is, without a tag."""
    tag: Annotated[str, Field(max_length=128)] = ""
    """The image's tag. Empty: the chart's appVersion."""
    digest: Annotated[str, Field(max_length=128)] = ""
    """The image's digest (sha256:...); the tag is then not used."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When nodes pull the image."""
    pull_secrets: PullSecrets = ()
    """Image pull secrets in the operator's namespace, such as {name: registry}."""


class JobDefaults(Contract):
    """What jobs get that leave it out. A job that has none of either is not accepted."""

    image: ImageSpec | None = None
    """spec.image: the runtime's image, such as {runtime: "my-registry/rlhf-runtime:0.1.0-gpu"}."""
    node_pools: NodePools = ()
    """spec.resources.nodePools, such as [{name: h100, nodes: 1, devicesPerNode: 8, gpu: H100}]."""
    storage: CheckpointStorage | None = None
    """spec.checkpoint.storage, such as {persistentVolumeClaim: {claimName: checkpoints}}. The claim
    is looked up in the job's namespace."""
    head: PodResources = OPERATOR.job_defaults.head
    """CPU and memory requests of head pods, such as {cpu: "2", memory: 8Gi}."""
    worker: PodResources = PodResources()
    """CPU and memory requests of worker pods whose pool names none. Empty: they ask for devices
    only, and may use what their node has left."""


class KeySecret(Contract):
    """Secret with the operator's own key, from which it derives every cluster's token."""

    name: NameOrNone = ""
    """The Secret's name in the operator's namespace. Empty: RELEASE-key. The operator makes it if
    it is missing; with another key it makes the clusters of running jobs anew."""


class Logging(Contract):
    """What the operator logs, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important messages that are logged."""
    format: Literal["json", "text"] = "json"
    """One JSON object a line, or text for people."""


class Crds(Contract):
    """The definition of RLHFJob."""

    install: bool = True
    """Install and upgrade the definition with the chart. `helm uninstall` keeps it, and so all
    jobs, in any case."""


class Rbac(Contract):
    """Roles."""

    create: bool = True
    """Make the operator's roles: ClusterRoles, or Roles in each of watchNamespaces."""
    aggregate_to_users: bool = True
    """Let those with Kubernetes' own roles view, edit and admin read or write RLHFJobs."""


class ServiceAccount(Contract):
    """Who the operator is for the API server."""

    create: bool = True
    """Make the service account; otherwise it exists already."""
    name: NameOrNone = ""
    """The service account's name. Empty: the release's."""
    annotations: LabelMap = {}
    """The service account's annotations."""


class PodMonitor(Contract):
    """How the Prometheus operator finds the metrics. Needs its PodMonitor kind."""

    enabled: bool = False
    """Make a PodMonitor."""
    interval: Text = "30s"
    """Time between two scrapes."""
    labels: LabelMap = {}
    """Labels by which a Prometheus selects the PodMonitor."""


class AlertRules(Contract):
    """Alerts. Needs the Prometheus operator's PrometheusRule kind."""

    enabled: bool = False
    """Make a PrometheusRule."""
    labels: LabelMap = {}
    """Labels by which a Prometheus selects the PrometheusRule."""


class Dashboard(Contract):
    """A Grafana dashboard in a ConfigMap, which Grafana's sidecar finds."""

    enabled: bool = False
    """Make the dashboard's ConfigMap."""
    labels: LabelMap = {"grafana_dashboard": "1"}
    """Labels by which the sidecar finds the ConfigMap."""
    annotations: LabelMap = {}
    """Annotations of the ConfigMap, such as the folder that the sidecar puts the dashboard in."""


class Metrics(Contract):
    """Metrics of the operator and of all jobs, on port 8080 at /metrics."""

    pod_monitor: PodMonitor = PodMonitor()
    """How the Prometheus operator finds them."""
    alert_rules: AlertRules = AlertRules()
    """Alerts."""
    dashboard: Dashboard = Dashboard()
    """A Grafana dashboard."""


class ApiServer(Contract):
    """Where the API server is, for the NetworkPolicy."""

    peers: tuple[Kubernetes, ...] = ()
    """The API server as peers of a NetworkPolicy, such as [{ipBlock: {cidr: 10.0.0.1/32}}]. Empty:
    anywhere."""
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = (443, 6443)
    """The API server's TCP ports, as pods reach it and behind its Service."""


class OperatorNetworkPolicy(Contract):
    """What may reach the operator, and what it may reach: the API server, DNS and heads of jobs."""

    enabled: bool = False
    """Make the NetworkPolicy. It has an effect where the cluster's network enforces them."""
    metrics_peers: tuple[Kubernetes, ...] = ()
    """Who may read metrics, as peers of a NetworkPolicy. Empty: every pod."""
    api_server: ApiServer = ApiServer()
    """Where the API server is."""
    dns_peers: tuple[Kubernetes, ...] = ()
    """Who answers DNS (port 53), as peers of a NetworkPolicy. Empty: anybody."""


class ChartValues(Contract):
    """All values."""

    name_override: NameOrNone = ""
    """Replaces the chart's name in names of objects."""
    fullname_override: NameOrNone = ""
    """Replaces the whole name of objects."""
    image: OperatorImage = OperatorImage()
    """Container image of the operator."""

    watch_namespaces: tuple[ObjectName, ...] = ()
    """Namespaces with jobs: the operator sees no others, and has Roles in them instead of
    ClusterRoles. They must exist. Empty: all namespaces."""
    job_defaults: JobDefaults = JobDefaults()
    """What jobs get that leave it out."""
    head_access: Literal["direct", "proxy"] = "direct"
    """How the operator reaches heads of jobs: by the addresses of their pods, or through the API
    server, which needs one right more and works from outside the pods' network."""
    key_secret: KeySecret = KeySecret()
    """Secret with the operator's own key."""
    bounds: Bounds = Bounds()
    """Limits of waits that may never end, in seconds."""
    replicas: Annotated[int, Field(ge=0, le=9)] = 1
    """Replicas of the operator. One of them acts, by a Lease; another takes over within 20 s."""
    reconcile_workers: Annotated[int, Field(ge=1, le=256)] = OPERATOR.reconcile_workers
    """Jobs that are reconciled at the same time."""
    planner_processes: Annotated[int, Field(ge=1, le=64)] = OPERATOR.planner_processes
    """Plans that are made at the same time; each may take a core."""
    logging: Logging = Logging()
    """What the operator logs, and how."""

    crds: Crds = Crds()
    """The definition of RLHFJob."""
    rbac: Rbac = Rbac()
    """Roles."""
    service_account: ServiceAccount = ServiceAccount()
    """Who the operator is for the API server."""
    metrics: Metrics = Metrics()
    """Metrics of the operator and of all jobs."""
    network_policy: OperatorNetworkPolicy = OperatorNetworkPolicy()
    """A NetworkPolicy for the operator itself. Those of jobs it makes by itself."""

    resources: Kubernetes = {
        "requests": {"cpu": "100m", "memory": "256Mi"},
        "limits": {"memory": "1Gi"},
    }
    """Requests and limits of the operator's container."""
    env: Environment = ()
    """Environment variables of the operator, such as those of a proxy."""
    pod_annotations: LabelMap = {}
    """Annotations of the operator's pod."""
    pod_labels: LabelMap = {}
    """Labels of the operator's pod."""
    priority_class_name: Annotated[str, Field(max_length=253)] = ""
    """Priority class of the operator's pod, such as system-cluster-critical."""
    node_selector: LabelMap = {"kubernetes.io/os": "linux"}
    """Labels that the operator's node must have."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the operator's pod tolerates."""
    affinity: Kubernetes = {}
    """Affinity of the operator's pod."""
    pod_security_context: Kubernetes = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    """Security context of the operator's pod; where the platform gives out user ids, set runAsUser,
    runAsGroup and fsGroup to null."""
    security_context: Kubernetes = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    """Security context of the operator's container."""
    termination_grace_period_seconds: Count = 30
    """How long the operator may finish what it does when it is stopped."""
    global_: Annotated[Kubernetes, Field(alias="global")] = {}
    """Values of a parent chart; not used."""
