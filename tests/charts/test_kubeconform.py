"""Everything that the chart makes fits the schemas of a real API server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from ..cluster.devcluster import CommandFailed, output_of
from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .conftest import MONITORING
from .helm import CASES, Helm
from .openapi_schemas import LOCATION, write_schemas

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def schemas(
    kubectl: Kubectl, helm: Helm, monitoring_kinds: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    objects = [each for case in CASES for each in helm.render(case)]
    kinds = {(each["apiVersion"], each["kind"]) for each in objects}
    new = {each for each in kinds if each[0] == "monitoring.coreos.com/v1"}
    assert len(new) == len(MONITORING)
    folder = tmp_path_factory.mktemp("schemas")

    def published() -> bool:
        try:
            write_schemas(kubectl, new, folder)
        except CommandFailed:  # new kinds come into the API server's schemas a moment later
            return False
        return len(list((folder / "monitoring.coreos.com").glob("*.json"))) == len(new)

    wait_until(published, seconds=60, what="the API server publishes the schemas of new kinds")
    write_schemas(kubectl, kinds - new, folder)
    return folder


def conform(kubeconform: Path, schemas: Path, manifest: str) -> str:
    """What kubeconform says; an error when something does not fit."""
    words = ["-strict", "-summary", "-schema-location", f"{schemas}/{LOCATION}", "-"]
    done = subprocess.run(
        [str(kubeconform), *words],
        input=manifest,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return output_of(done)


@pytest.mark.parametrize("case", CASES)
def test_every_object_fits_its_schema(
    kubeconform: Path, schemas: Path, helm: Helm, case: str
) -> None:
    said = conform(kubeconform, schemas, helm.text(case))
    assert f"Valid: {len(helm.render(case))}, Invalid: 0, Errors: 0, Skipped: 0" in said


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("Deployment", "replica", 1),
        ("PodMonitor", "podMetricsEndpoint", []),
        ("NetworkPolicy", "podSelector", "all"),
    ],
)
def test_a_wrong_field_is_noticed(
    kubeconform: Path, schemas: Path, helm: Helm, kind: str, field: str, value: object
) -> None:
    (made,) = (each for each in helm.render("everything") if each["kind"] == kind)
    made["spec"][field] = value
    with pytest.raises(CommandFailed, match=field):
        conform(kubeconform, schemas, yaml.safe_dump(made))
