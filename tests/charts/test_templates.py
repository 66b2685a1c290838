"""What the chart's templates make of values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.crd.definition import crd
from rlhf_operator.apply.build.owned_objects import OPERATOR_LABELS
from rlhf_operator.config import OperatorConfig
from rlhf_operator.permissions import OWN, PROXIED_HEADS, WATCHED, Permission

from ..cluster.devcluster import CommandFailed
from .helm import (
    CASES,
    CHART,
    NAMESPACE,
    RELEASE,
    VALUES,
    Helm,
    Object,
    of_kind,
    templated,
    the,
    values_file,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def pod_of(objects: list[Object]) -> Object:
    template: Object = the(objects, "Deployment")["spec"]["template"]
    return template


def container_of(objects: list[Object]) -> Object:
    (container,) = pod_of(objects)["spec"]["containers"]
    found: Object = container
    return found


BOUNDS = OperatorConfig().bounds.model_dump(mode="json", by_alias=True)


def settings_of(objects: list[Object]) -> Any:
    """The operator's settings file."""
    maps = {each["metadata"]["name"]: each["data"] for each in of_kind(objects, "ConfigMap")}
    volumes = {each["name"]: each for each in pod_of(objects)["spec"]["volumes"]}
    return yaml.safe_load(maps[volumes["config"]["configMap"]["name"]]["config.yaml"])


def rules_of(
    permissions: tuple[Permission, ...], names: Mapping[str, str] | None = None
) -> list[Object]:
    """Rules as a role has them."""
    return [
        {
            "apiGroups": [each.group],
            "resources": [*each.resources],
            **({"resourceNames": [(names or {})[each.named]]} if each.named else {}),
            "verbs": [*each.verbs],
        }
        for each in permissions
    ]


@pytest.mark.parametrize("case", CASES)
def test_the_chart_passes_helms_lint(helm: Helm, case: str) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(values_file(case)))


def test_values_for_one_machine_name_the_images_that_are_built_there(helm: Helm) -> None:
    values = ROOT / "examples" / "one-machine" / "values.yaml"
    objects = list(yaml.safe_load_all(templated(helm, RELEASE, "--values", str(values))))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container_of(objects)["image"] == f"localhost/rlhf-operator:{version}"
    defaults = settings_of(objects)["jobDefaults"]
    assert defaults["image"] == {"runtime": f"localhost/rlhf-runtime:{version}-cpu"}


def test_every_file_of_values_is_a_case() -> None:
    assert {path.stem for path in VALUES.iterdir()} == set(CASES)


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize("case", CASES)
def test_objects_are_in_the_releases_namespace_and_labelled(helm: Helm, case: str) -> None:
    places = {NAMESPACE, "team-a", "team-b"} if case == "namespaces" else {NAMESPACE}
    objects = helm.render(case)
    cluster = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding")
    spread = [each for each in objects if each["kind"] not in cluster]
    assert {each["metadata"]["namespace"] for each in spread} == places
    for each in objects:
        if each["kind"] != "CustomResourceDefinition":
            assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


@pytest.mark.parametrize("case", CASES)
def test_one_operator_runs_and_a_new_one_stands_by_before_the_old_one_goes(
    helm: Helm, case: str
) -> None:
    spec = the(helm.render(case), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "RollingUpdate"})


@pytest.mark.parametrize("case", CASES)
def test_service_and_deployment_select_the_operators_pod_only(helm: Helm, case: str) -> None:
    objects = helm.render(case)
    selector = the(objects, "Service")["spec"]["selector"]
    assert the(objects, "Deployment")["spec"]["selector"]["matchLabels"] == selector
    assert selector.items() <= pod_of(objects)["metadata"]["labels"].items()
    test = the(objects, "Pod")
    assert not selector.items() <= test["metadata"]["labels"].items()
    assert test["metadata"]["labels"]["app.kubernetes.io/name"] != "rlhf-operator"


def test_labels_of_values_come_beside_the_charts_own(helm: Helm) -> None:
    labels = pod_of(helm.render("everything"))["metadata"]["labels"]
    assert labels["team"] == "ml" and labels["app.kubernetes.io/component"] == "operator"


def test_the_operator_is_started_with_its_settings_and_probed(helm: Helm) -> None:
    container = container_of(helm.render("smallest"))
    words = ["python", "-m", "rlhf_operator", "--config", "/etc/rlhf-operator/config.yaml"]
    assert container["command"] == words
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert mounts["config"]["mountPath"] == "/etc/rlhf-operator"
    paths = {p: container[p]["httpGet"]["path"] for p in ("livenessProbe", "readinessProbe")}
    assert paths == {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    (namespace,) = (each for each in container["env"] if each["name"] == "POD_NAMESPACE")
    assert namespace["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}


def test_settings_are_those_of_the_values(helm: Helm) -> None:
    assert settings_of(helm.render("smallest")) == {
        "namespaces": [],
        "keySecret": {"name": "rlhf-rlhf-operator-key"},
        "leaseName": "rlhf-rlhf-operator",
        "bounds": BOUNDS,
        "headAccess": "direct",
        "reconcileWorkers": 16,
        "plannerProcesses": 2,
        "logLevel": "info",
        "logFormat": "json",
        "jobLogFormat": "text",
        "jobDefaults": {
            "nodePools": [],
            "head": {"cpu": "1", "memory": "4Gi"},
            "worker": {},
        },
        "podPolicy": {"hostPaths": [], "serviceAccountNames": [], "extraContainers": False},
    }
    defaults = yaml.safe_load(values_file("namespaces").read_text())["jobDefaults"]
    settings = settings_of(helm.render("namespaces"))
    assert settings["namespaces"] == ["team-a", "team-b"]
    assert settings["keySecret"] == {"name": "cluster-key"}
    head = {"head": {"cpu": "1", "memory": "4Gi"}}
    assert settings["jobDefaults"] == {**defaults, **head}
    everything = settings_of(helm.render("everything"))
    assert everything["logLevel"] == "debug" and everything["logFormat"] == "text"
    assert everything["jobLogFormat"] == "json"
    assert everything["headAccess"] == "proxy" and everything["reconcileWorkers"] == 64
    written = yaml.safe_load(values_file("everything").read_text())
    assert everything["jobDefaults"].items() >= written["jobDefaults"].items()
    assert everything["podPolicy"] == written["podPolicy"]


@pytest.mark.parametrize("case", CASES)
def test_the_operator_reads_its_settings(helm: Helm, case: str) -> None:
    OperatorConfig.model_validate(settings_of(helm.render(case)))


def test_defaults_of_values_are_the_operators(helm: Helm) -> None:
    settings = settings_of(helm.render("smallest"))
    assert settings.pop("keySecret") == {"name": "rlhf-rlhf-operator-key"}
    assert settings.pop("leaseName") == "rlhf-rlhf-operator"
    assert OperatorConfig.model_validate(settings) == OperatorConfig()


def test_jobs_let_the_operators_pod_in_and_not_the_one_of_helm_test(helm: Helm) -> None:
    objects = helm.render("smallest")
    assert OPERATOR_LABELS.items() <= pod_of(objects)["metadata"]["labels"].items()
    assert not OPERATOR_LABELS.items() <= the(objects, "Pod")["metadata"]["labels"].items()


def test_other_settings_make_another_pod_and_the_same_ones_do_not(helm: Helm) -> None:
    first = pod_of(helm.render("smallest"))
    assert pod_of(helm.render("smallest", "--set", "crds.install=false")) == first
    assert pod_of(helm.render("smallest", "--set", "logging.level=debug")) != first


def test_a_user_id_that_the_platform_gives_out_is_left_out(helm: Helm) -> None:
    context = pod_of(helm.render("everything"))["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_an_image_is_named_by_digest_tag_or_the_charts_version(helm: Helm) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    image = container_of(helm.render("smallest"))["image"]
    assert image == f"localhost/rlhf-operator:{version}"
    tagged = container_of(helm.render("smallest", "--set-string", "image.tag=7"))["image"]
    assert tagged == "localhost/rlhf-operator:7"
    assert container_of(helm.render("everything"))["image"].endswith(f"@sha256:{'0' * 64}")


def test_names_follow_the_release_and_can_be_set(helm: Helm) -> None:
    def name(release: str, values: str = "") -> str:
        objects = helm.render("smallest", "--set", values, release=release)
        found: str = the(objects, "Deployment")["metadata"]["name"]
        return found

    assert name("rlhf") == "rlhf-rlhf-operator"
    assert name("rlhf", "nameOverride=op") == "rlhf-op"
    assert name("rlhf", "fullnameOverride=mine") == "mine"
    assert name("rlhf-operator") == "rlhf-operator"
    assert name("rlhf.v1") == "rlhf-v1-rlhf-operator"
    assert len(name("a" * 53)) == 53


def test_without_namespaces_rights_are_those_of_one_cluster_role(helm: Helm) -> None:
    roles = {each["metadata"]["name"]: each for each in of_kind(helm.render("smallest"), "Role")}
    assert set(roles) == {"rlhf-rlhf-operator-own"}
    own = rules_of(OWN, {"keySecret": "rlhf-rlhf-operator-key", "lease": "rlhf-rlhf-operator"})
    assert roles["rlhf-rlhf-operator-own"]["rules"] == own
    cluster = {
        each["metadata"]["name"]: each for each in of_kind(helm.render("smallest"), "ClusterRole")
    }
    operator = cluster[f"{NAMESPACE}-rlhf-rlhf-operator"]
    assert operator["rules"] == rules_of(WATCHED)


def test_with_namespaces_the_operator_has_rights_in_them_only(helm: Helm) -> None:
    objects = helm.render("namespaces")
    assert not list(of_kind(objects, "ClusterRoleBinding"))
    roles = {each["metadata"]["namespace"]: each["rules"] for each in of_kind(objects, "Role")}
    assert roles == {
        "team-a": rules_of(WATCHED),
        "team-b": rules_of(WATCHED),
        NAMESPACE: rules_of(OWN, {"keySecret": "cluster-key", "lease": "rlhf-rlhf-operator"}),
    }
    for binding in of_kind(objects, "RoleBinding"):
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == ("rlhf", NAMESPACE)


def test_heads_behind_the_api_server_cost_one_right_more(helm: Helm) -> None:
    (role,) = (
        each
        for each in of_kind(helm.render("everything"), "ClusterRole")
        if each["metadata"]["name"] == f"{NAMESPACE}-rlhf-op"
    )
    assert role["rules"] == rules_of(WATCHED + PROXIED_HEADS)


def test_roles_and_account_can_be_left_to_others(helm: Helm) -> None:
    off = ("rbac.create=false", "rbac.aggregateToUsers=false", "serviceAccount.create=false")
    objects = helm.render("smallest", "--set", ",".join(off))
    kinds = {each["kind"] for each in objects}
    assert kinds.isdisjoint({"Role", "RoleBinding", "ClusterRole", "ServiceAccount"})
    assert pod_of(objects)["spec"]["serviceAccountName"] == "default"


def test_the_definition_is_the_one_of_the_models_and_stays(helm: Helm) -> None:
    installed = the(helm.render("smallest"), "CustomResourceDefinition")
    assert installed["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert installed == crd()
    without = helm.render("smallest", "--set", "crds.install=false")
    assert not list(of_kind(without, "CustomResourceDefinition"))


def test_what_needs_other_operators_is_off_by_default(helm: Helm) -> None:
    optional = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "NetworkPolicy"}
    assert optional.isdisjoint(each["kind"] for each in helm.render("smallest"))
    assert optional <= {each["kind"] for each in helm.render("everything")}


def test_metrics_are_scraped_with_the_labels_that_they_have(helm: Helm) -> None:
    objects = helm.render("everything")
    monitor = the(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True and endpoint["interval"] == "15s"
    (port,) = container_of(objects)["ports"]
    assert endpoint["port"] == port["name"] and port["containerPort"] == 8080
    labels = pod_of(objects)["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_service_can_be_scraped_instead_of_the_pods(helm: Helm) -> None:
    objects = helm.render("everything")
    monitor, service = the(objects, "ServiceMonitor"), the(objects, "Service")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True and endpoint["interval"] == "20s"
    (port,) = service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_rules_and_dashboard_arrive_as_their_files_have_them(helm: Helm) -> None:
    objects = helm.render("everything")
    groups = [
        group
        for file in ("records.yaml", "alerts.yaml")
        for group in yaml.safe_load((CHART / "files" / file).read_text())["groups"]
    ]
    assert the(objects, "PrometheusRule")["spec"] == {"groups": groups}
    (shown,) = (
        each
        for each in of_kind(objects, "ConfigMap")
        if each["metadata"]["name"].endswith("-dashboard")
    )
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    assert json.loads(shown["data"]["rlhf-operator.json"]) == dashboard


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("watchNamespace=a", "watchNamespace"),
        ("headAccess=tunnel", "headAccess"),
        ("reconcileWorkers=0", "reconcileWorkers"),
        ("jobDefaults.image.pullPolicy=Always", "runtime"),
        ("jobDefaults.nodePools[0].nodes=1", "name"),
        ("jobDefaults.pod.securityContext.runAsUser=0", "runAsUser"),
        ("jobDefaults.namespaces.team.pod.command=a", "command"),
        ("podPolicy.extraContainers=1", "extraContainers"),
        ("jobDefaults.nodePools[0].name=a,jobDefaults.nodePools[0].device=tpu", "device"),
        ("watchNamespaces[0]=Team", "watchNamespaces"),
        ("keySecret.name=-", "keySecret"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Helm, values: str, says: str) -> None:
    with pytest.raises(CommandFailed, match=says):
        helm.text("smallest", "--set", values)


def test_values_of_a_parent_chart_are_let_through(helm: Helm) -> None:
    helm.text("smallest", "--set", "global.clusterName=x")
