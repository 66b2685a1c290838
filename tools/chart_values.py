"""Values of the chart: names, types, defaults and meaning.

`make generate` writes values.yaml, values.schema.json and the table of the chart's README from
these models. Names in YAML follow the conventions of charts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rlhf_api.base import Contract, Count, LabelMap, Name, ObjectName, Text
from rlhf_api.spec.checkpoint import CheckpointStorage
from rlhf_api.spec.cluster import ImageSpec, PullSecrets
from rlhf_api.spec.environment import Environment
from rlhf_api.spec.pod.scheduling import Toleration
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_api.spec.resources import NodePools, PodResources
from rlhf_operator.config import Bounds, DefaultValues, OperatorConfig, PodPolicy

# Defaults of the chart are the operator's own: a value that is not set changes nothing.
OPERATOR = OperatorConfig()
"""Defaults of the operator."""

Kubernetes = dict[str, Any]
"""Object of Kubernetes, passed on unchanged; the API server checks it."""

# 53 characters: Helm's limit for names of releases.
NameOrNone = Annotated[str, Field(max_length=53, pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$")]
"""Name, or empty for the chart's default."""


class OperatorImage(Contract):
    """Container image of the operator."""

    repository: Text = "localhost/rlhf-operator"
    """Repository of the image, without a tag."""
    tag: Annotated[str, Field(max_length=128)] = ""
    """The image's tag. Empty: the chart's appVersion."""
    digest: Annotated[str, Field(max_length=128)] = ""
    """The image's digest (sha256:...); the tag is then not used."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Pull policy of the image."""
    pull_secrets: PullSecrets = ()
    """Image pull secrets in the operator's namespace, such as {name: registry}."""


class JobDefaults(Contract):
    """Defaults for fields that a job leaves out. A job with neither is not accepted."""

    image: ImageSpec | None = None
    """spec.image: the runtime's image, such as {runtime: "registry/rlhf-runtime:VERSION-gpu"}."""
    node_pools: NodePools = ()
    """spec.resources.nodePools, such as [{name: h100, nodes: 1, devicesPerNode: 8, gpu: H100}]."""
    storage: CheckpointStorage | None = None
    """spec.checkpoint.storage, such as {persistentVolumeClaim: {claimName: checkpoints}}. The claim
    is looked up in the job's namespace."""
    head: PodResources = OPERATOR.job_defaults.head
    """CPU, memory and local disk of head pods, such as {cpu: "2", cpuLimit: "4", memory: 8Gi,
    ephemeralStorage: 10Gi}."""
    worker: PodResources = PodResources()
    """CPU and memory requests of worker pods whose pool names none. Empty: they ask for devices
    only, and may use free capacity of their node."""
    pod: PodTemplate = PodTemplate()
    """Fields of all pods of jobs, such as {tolerations: [{operator: Exists}]}, as
    spec.resources.pod. Those of a job win."""
    head_pod: PodTemplate = PodTemplate()
    """Fields of head pods, as spec.resources.headPod."""
    worker_pod: PodTemplate = PodTemplate()
    """Fields of worker pods, as pod of every entry of spec.resources.nodePools."""
    namespaces: Annotated[dict[Name, DefaultValues], Field(max_length=1024)] = {}
    """By namespace, values that replace those above for its jobs, each as a whole, such as
    {team-a: {pod: {schedulerName: volcano}}}."""


class KeySecret(Contract):
    """Secret with the operator's own key, from which it derives every cluster's token."""

    name: NameOrNone = ""
    """The Secret's name in the operator's namespace. Empty: RELEASE-key. The operator makes it if
    it is missing; with another key it recreates the clusters of running jobs."""


class Logging(Contract):
    """Level and format of the operator's log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    format: Literal["json", "text"] = "json"
    """One JSON object a line, or text for people."""
    jobs: Literal["json", "text"] = "text"
    """The same for drivers and workers of jobs whose clusters are created from now on."""


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
    """Let users with Kubernetes' own roles view, edit and admin read or write RLHFJobs."""


class ServiceAccount(Contract):
    """Service account of the operator."""

    create: bool = True
    """Make the service account; otherwise it exists already."""
    name: NameOrNone = ""
    """The service account's name. Empty: the release's."""
    annotations: LabelMap = {}
    """The service account's annotations."""


class PodMonitor(Contract):
    """PodMonitor for the Prometheus operator. Needs its PodMonitor kind."""

    enabled: bool = False
    """Make a PodMonitor."""
    interval: Text = "30s"
    """Time between two scrapes."""
    labels: LabelMap = {}
    """Labels by which a Prometheus selects the PodMonitor."""


class ServiceMonitor(Contract):
    """ServiceMonitor for the Prometheus operator. Needs its ServiceMonitor kind."""

    enabled: bool = False
    """Make a ServiceMonitor, where no PodMonitor is wanted; both would scrape everything twice."""
    interval: Text = "30s"
    """Time between two scrapes."""
    labels: LabelMap = {}
    """Labels by which a Prometheus selects the ServiceMonitor."""


class AlertRules(Contract):
    """Alerts and recording rules. Needs the Prometheus operator's PrometheusRule kind."""

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
    """PodMonitor for the Prometheus operator."""
    service_monitor: ServiceMonitor = ServiceMonitor()
    """ServiceMonitor for the Prometheus operator, instead of the PodMonitor."""
    alert_rules: AlertRules = AlertRules()
    """Alerts and recording rules."""
    dashboard: Dashboard = Dashboard()
    """A Grafana dashboard."""


class ApiServer(Contract):
    """Address of the API server, for the NetworkPolicy."""

    peers: tuple[Kubernetes, ...] = ()
    """The API server as peers of a NetworkPolicy, such as [{ipBlock: {cidr: 10.0.0.1/32}}]. Empty:
    anywhere."""
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = (443, 6443)
    """The API server's TCP ports, as pods reach it and behind its Service."""


class OperatorNetworkPolicy(Contract):
    """Allowed connections of the operator: to the API server, DNS and heads of jobs, and from
    readers of metrics."""

    enabled: bool = False
    """Make the NetworkPolicy. It has an effect where the cluster's network enforces them."""
    metrics_peers: tuple[Kubernetes, ...] = ()
    """Readers of metrics, as peers of a NetworkPolicy. Empty: every pod."""
    api_server: ApiServer = ApiServer()
    """Address of the API server."""
    dns_peers: tuple[Kubernetes, ...] = ()
    """DNS servers (port 53), as peers of a NetworkPolicy. Empty: anywhere."""


class ChartValues(Contract):
    """Values of the chart."""

    name_override: NameOrNone = ""
    """Replaces the chart's name in names of objects."""
    fullname_override: NameOrNone = ""
    """Replaces the full name of objects."""
    image: OperatorImage = OperatorImage()
    """Container image of the operator."""

    watch_namespaces: tuple[ObjectName, ...] = ()
    """Namespaces with jobs: the operator sees no others, and has Roles in them instead of
    ClusterRoles. They must exist. Empty: all namespaces."""
    job_defaults: JobDefaults = JobDefaults()
    """Defaults for fields that jobs leave out."""
    head_access: Literal["direct", "proxy"] = "direct"
    """Connection to heads of jobs: by the addresses of their pods, or through the API server,
    which needs one more permission and works from outside the pods' network."""
    key_secret: KeySecret = KeySecret()
    """Secret with the operator's own key."""
    pod_policy: PodPolicy = PodPolicy()
    """Fields of pods that jobs may set only where this says so: hostPaths (folders of nodes, with
    everything below them), serviceAccountNames, and extraContainers (initContainers and
    sidecars)."""
    bounds: Bounds = Bounds()
    """Limits of waits that may never end, in seconds."""
    replicas: Annotated[int, Field(ge=0, le=9)] = 1
    """Replicas of the operator. One of them acts, by a Lease; another takes over within 20 s."""
    reconcile_workers: Annotated[int, Field(ge=1, le=256)] = OPERATOR.reconcile_workers
    """Jobs that are reconciled at the same time."""
    planner_processes: Annotated[int, Field(ge=1, le=64)] = OPERATOR.planner_processes
    """Plans that are made at the same time; each may take a core."""
    logging: Logging = Logging()
    """Level and format of the operator's log."""

    crds: Crds = Crds()
    """The definition of RLHFJob."""
    rbac: Rbac = Rbac()
    """Roles."""
    service_account: ServiceAccount = ServiceAccount()
    """Service account of the operator."""
    metrics: Metrics = Metrics()
    """Metrics of the operator and of all jobs."""
    network_policy: OperatorNetworkPolicy = OperatorNetworkPolicy()
    """A NetworkPolicy for the operator itself. It creates those of jobs."""

    resources: Kubernetes = {
        "requests": {"cpu": "500m", "memory": "256Mi"},
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
    # User 1000 of the image.
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
    """Grace period in which a stopped operator may finish its work."""
    global_: Annotated[Kubernetes, Field(alias="global")] = {}
    """Values of a parent chart; not used."""
