"""A release in a real cluster: installed, upgraded and uninstalled, and what stays."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.crd.definition import COLUMNS, WIDE_COLUMNS

from ..cluster.definition import NAME, undefined
from ..cluster.devcluster import CommandFailed
from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .helm import CASES, CHART, RELEASE, Helm, of_kind, the
from .installed import Place, own_place

pytestmark = pytest.mark.cluster
JOB = Path(__file__).parents[1] / "rlhf_api" / "manifests" / "smallest.yaml"
TITLES = [title for title, *_ in (*COLUMNS, *WIDE_COLUMNS)]


@pytest.fixture
def place(helm: Helm, kubectl: Kubectl, kubeconfig: Path) -> Iterator[Place]:
    yield from own_place(Helm(helm.program, helm.home, kubeconfig), kubectl)


@pytest.fixture
def without_definition(place: Place) -> Iterator[Place]:
    """The place; the definition of RLHFJob, which a release leaves, goes at the end."""
    with undefined(place.kubectl):
        yield place
        place.helm("uninstall", RELEASE, "--namespace", place.system, "--ignore-not-found")


def titles(kubectl: Kubectl) -> list[str]:
    """Titles of the columns that the installed definition has."""
    (version,) = kubectl.get("default", f"crd/{NAME}")["spec"]["versions"]
    return [each["name"] for each in version["additionalPrinterColumns"]]


@pytest.mark.usefixtures("monitoring_kinds")
@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_every_object(place: Place, case: str) -> None:
    manifest = place.helm("template", *place.arguments(case))
    # Objects of the definition's kind are none of the chart's, so all can be tried at once.
    said = place.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--filename=-",
        stdin=manifest,
    )
    made = [each for each in yaml.load_all(manifest, yaml.CSafeLoader) if each]
    assert said.count("serverside-applied (server dry run)") == len(made)


@pytest.mark.parametrize("case", CASES)
def test_its_pods_are_of_the_restricted_profile(place: Place, helm: Helm, case: str) -> None:
    objects = helm.render(case, "--set", "serviceAccount.create=false,serviceAccount.name=default")
    template: Any = the(objects, "Deployment")["spec"]["template"]
    operator = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, **template}
    operator["metadata"] = {"name": "operator"}
    test = the(objects, "Pod")
    test["metadata"]["namespace"] = place.system
    for pod in (operator, test):
        place.kubectl.send("create", place.system, pod, "--dry-run=server")
        pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        with pytest.raises(CommandFailed, match="allowPrivilegeEscalation"):
            place.kubectl.send("create", place.system, pod, "--dry-run=server")


def test_an_upgrade_changes_the_definition_and_uninstalling_keeps_it_and_its_jobs(
    without_definition: Place, tmp_path: Path
) -> None:
    place, kubectl = without_definition, without_definition.kubectl
    place.helm("install", *place.arguments("smallest", chart=str(with_one_column(tmp_path))))
    assert titles(kubectl) == ["Phase"]
    kubectl("apply", f"--namespace={place.team_a}", f"--filename={JOB}")
    (before,) = kubectl.get(place.team_a, "rlhfjobs")["items"]

    place.helm("upgrade", *place.arguments("smallest"), "--wait", "--timeout=60s")
    assert titles(kubectl) == TITLES

    place.helm("uninstall", RELEASE, "--namespace", place.system, "--wait")
    assert kubectl.get(place.system, "deployments")["items"] == []
    assert titles(kubectl) == TITLES
    (after,) = kubectl.get(place.team_a, "rlhfjobs")["items"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]

    place.helm("install", *place.arguments("smallest"), "--wait", "--timeout=60s")
    (adopted,) = kubectl.get(place.team_a, "rlhfjobs")["items"]
    assert adopted["metadata"]["uid"] == before["metadata"]["uid"]


def with_one_column(folder: Path) -> Path:
    """The chart with an older definition, which prints one column."""
    chart = Path(shutil.copytree(CHART, folder / "chart"))
    file = chart / "files" / "rlhfjobs.yaml"
    definition = yaml.load(file.read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    del version["additionalPrinterColumns"][1:]
    file.write_text(yaml.safe_dump(definition))
    return chart


def test_new_settings_replace_the_pod_and_the_same_ones_keep_it(without_definition: Place) -> None:
    place, kubectl = without_definition, without_definition.kubectl
    ready = ("--wait", "--timeout=60s")
    place.helm("install", *place.arguments("smallest"), *ready)

    def pods() -> set[str]:
        running = kubectl.get(place.system, "pods", "--field-selector=status.phase=Running")
        return {
            each["metadata"]["uid"]
            for each in running["items"]
            if "deletionTimestamp" not in each["metadata"]
        }

    first = pods()
    assert len(first) == 1
    place.helm(
        "upgrade", *place.arguments("smallest"), "--set", "rbac.aggregateToUsers=false", *ready
    )
    assert pods() == first
    place.helm("upgrade", *place.arguments("smallest"), "--set", "logging.level=debug", *ready)

    def is_replaced() -> bool:
        now = pods()
        return len(now) == 1 and now != first

    # Helm waits until the new pod is ready. The end of the old one comes a moment later.
    wait_until(is_replaced, 60, "the end of the old pod")


def test_the_notes_say_what_is_missing(without_definition: Place) -> None:
    place = without_definition
    notes = place.helm("install", *place.arguments("smallest"))
    assert "watches all namespaces" in notes
    assert "jobDefaults lacks image nodePools storage" in notes
    assert "KubeRay IS MISSING" not in notes
    complete = place.helm("upgrade", *place.arguments("namespaces"))
    assert f"watches the namespaces {place.team_a}, {place.team_b}" in complete
    assert "jobDefaults lacks" not in complete and "crds.install" not in complete
    without = place.helm("upgrade", *place.arguments("smallest"), "--set", "crds.install=false")
    assert "crds.install is false" in without


def test_a_release_has_one_of_each_object(helm: Helm) -> None:
    for case in CASES:
        objects = helm.render(case)
        names = [
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
            for each in objects
        ]
        assert len(set(names)) == len(names)
        assert list(of_kind(objects, "Deployment"))
