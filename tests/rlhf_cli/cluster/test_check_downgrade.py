"""`rlhf check-downgrade`: what jobs would lose under an older release's definition."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.errors import ManifestError
from rlhf_cli.cluster.jobs import read_job
from rlhf_cli.cluster.older_definition import lost_fields, read_definition
from rlhf_kube.kinds import Kind

from ...rlhf_kube.fake_kube import FakeKube
from .objects import RUNNING, submission
from .test_commands import rlhf

ROOT = Path(__file__).parents[3]
OLDER = ROOT / "tests/charts/older/rlhf-operator-0.1.0-older.tgz"
CURRENT = ROOT / "charts/rlhf-operator/files/rlhfjobs.yaml"
META = {
    "metadata": {
        "name": "sort", "namespace": "team", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"
    }
}  # fmt: skip


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The definition of the committed older release."""
    file = tmp_path_factory.mktemp("older") / "rlhfjobs.yaml"
    with tarfile.open(OLDER) as chart:
        member = chart.extractfile("rlhf-operator/files/rlhfjobs.yaml")
        assert member is not None
        file.write_bytes(member.read())
    return file


def create(fake: FakeKube, name: str, **spec: Any) -> None:
    document = submission(name, "team")
    fake.create({**document, "spec": {**document["spec"], **spec}})


def test_fields_that_the_older_definition_lacks_are_named(fake: FakeKube, older: Path) -> None:
    create(fake, "plain", suspend=True)
    create(fake, "new", clusterTTLSeconds=60, hub={"pushModel": {"repository": "team/model"}})
    done = rlhf("check-downgrade", str(older))
    assert done.exit_code == 2
    first, *others = done.stdout.splitlines()
    assert first == "team/new: spec.clusterTTLSeconds: that definition has no such field"
    assert others[-1].startswith("1 of 2 jobs that have not ended would lose these fields")
    assert "plain" not in done.stdout


def test_values_that_the_older_definition_lacks_are_named(fake: FakeKube, tmp_path: Path) -> None:
    definition = yaml.load(CURRENT.read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["algorithm"]["properties"]["type"]["enum"] = ["PPO"]
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all([{"kind": "Service"}, definition]))
    create(fake, "sort")
    done = rlhf("check-downgrade", str(file), "-A")
    assert done.exit_code == 2
    assert "team/sort: spec.algorithm.type: got GRPO, allowed PPO" in done.stdout


def test_defaults_and_ended_jobs_do_not_count(fake: FakeKube, older: Path) -> None:
    create(fake, "ended", clusterTTLSeconds=60)
    fake.set_status(Kind.JOB, "team", "ended", RUNNING | {"phase": "Succeeded"})
    create(fake, "stored", suspend=False)
    done = rlhf("check-downgrade", str(older))
    assert (done.exit_code, done.stdout) == (
        0,
        "none of 1 jobs that have not ended would lose a field\n",
    )


def test_a_job_loses_nothing_under_its_own_definition(fake: FakeKube) -> None:
    manifest = yaml.safe_load((ROOT / "tests/rlhf_api/manifests/full.yaml").read_text())
    fake.create({**manifest, "metadata": {**manifest["metadata"], "namespace": "team"}})
    assert rlhf("check-downgrade", str(CURRENT)).exit_code == 0


def test_a_job_of_another_release_is_compared_as_it_is_stored(fake: FakeKube, older: Path) -> None:
    create(fake, "later", algorithm={"type": 7, "later.example/x": None, "a.example/b": 1})
    done = rlhf("check-downgrade", str(older))
    assert done.exit_code == 2
    assert "team/later: spec.algorithm.type: got 7, allowed a value of type string" in done.stdout
    assert "team/later: spec.algorithm[a.example/b]: that definition has no such" in done.stdout


def test_a_definition_may_be_in_a_list_or_in_json(fake: FakeKube, tmp_path: Path) -> None:
    definition = yaml.load(CURRENT.read_text(), yaml.CSafeLoader)
    file = tmp_path / "list.json"
    file.write_text(json.dumps({"kind": "List", "items": [{"kind": "Service"}, definition]}))
    create(fake, "sort")
    assert rlhf("check-downgrade", str(file)).exit_code == 0


@pytest.mark.parametrize(
    ("schema", "value", "lost"),
    [
        ({"x-kubernetes-int-or-string": True}, "1Gi", None),
        ({"type": "object", "additionalProperties": True}, {"a": {"b": 1}}, None),
        ({"additionalProperties": {"type": "string"}}, {"a.b/c": "x"}, None),
        ({"additionalProperties": {"enum": ["x"]}}, {"a.b/c": "y"}, "spec.field[a.b/c]"),
        ({"type": "object"}, "x", "spec.field"),
        ({"type": "string"}, {"a": 1}, "spec.field"),
        ({"type": "integer"}, True, "spec.field"),
        ({"type": "boolean"}, True, None),
        ({"type": "number"}, 1, None),
    ],
)
def test_values_are_compared_with_their_schemas(
    schema: dict[str, Any], value: object, lost: str | None
) -> None:
    job = read_job({**submission("sort", "team"), "spec": {"field": value}} | META)
    definition = {"properties": {"spec": {"properties": {"field": schema}}}}
    assert [field.path for field in lost_fields(definition, job)] == [lost] * (lost is not None)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["spec"], None),
        (["spec"], "2020-01-01"),
        (["spec", "versions"], None),
        (["spec", "versions"], ["v1alpha1"]),
        (["spec", "names"], None),
        (["spec", "versions", 0, "name"], None),
        (["spec", "versions", 0, "schema"], None),
        (["spec", "versions", 0, "schema", "openAPIV3Schema"], "x"),
        (["spec", "versions", 0, "schema", "openAPIV3Schema", "properties", "spec"], None),
    ],
)
def test_a_damaged_definition_is_refused(place: list[Any], value: object) -> None:
    definition = yaml.load(CURRENT.read_text(), yaml.CSafeLoader)
    part = definition
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    with pytest.raises(ManifestError, match="no definition of RLHFJob in version v1alpha1"):
        read_definition(json.dumps(definition), "file.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "not YAML"), ("kind: Service\n", "no definition of RLHFJob in version v1alpha1")],
)
def test_other_files_are_refused(fake: FakeKube, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    done = rlhf("check-downgrade", str(file))
    assert done.exit_code == 2 and message in done.stderr
