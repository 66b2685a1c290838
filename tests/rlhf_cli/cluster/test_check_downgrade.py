"""`rlhf check-downgrade`: what jobs would lose under an older release's definition."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_kube.kinds import Kind

from ...rlhf_kube.fake_kube import FakeKube
from .objects import RUNNING, submission
from .test_commands import rlhf

ROOT = Path(__file__).parents[3]
OLDER = ROOT / "tests/charts/older/rlhf-operator-0.1.0-older.tgz"
CURRENT = ROOT / "charts/rlhf-operator/files/rlhfjobs.yaml"


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


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "not YAML"), ("kind: Service\n", "no definition of RLHFJob in version v1alpha1")],
)
def test_other_files_are_refused(fake: FakeKube, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    done = rlhf("check-downgrade", str(file))
    assert done.exit_code == 2 and message in done.stderr
