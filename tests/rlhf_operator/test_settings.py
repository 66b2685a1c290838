"""The operator's settings and its key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from rlhf_kube.errors import Forbidden, KubeError
from rlhf_kube.kinds import Kind
from rlhf_operator.config import BadConfig, HeadAccess, OperatorConfig, load_config
from rlhf_operator.identity import key_in_cluster, key_in_file

from ..rlhf_kube.fake_kube import FakeKube

PLACE = (Kind.SECRET, "rlhf-system", "key")


def test_without_a_file_there_are_defaults() -> None:
    assert load_config(None) == OperatorConfig()


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("# nothing\n")
    assert load_config(file) == OperatorConfig()


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    document = {
        "namespaces": ["team-a", "team-b"],
        "headAccess": "proxy",
        "pollSeconds": 2.5,
        "jobDefaults": {"image": {"runtime": "runtime:1"}, "storage": {"uri": "s3://b/p"}},
    }
    file.write_text(yaml.safe_dump(document))
    config = load_config(file)
    assert config.namespaces == ("team-a", "team-b")
    assert config.head_access is HeadAccess.PROXY and config.poll_seconds == 2.5
    assert config.job_defaults.image is not None
    assert config.job_defaults.image.runtime == "runtime:1"
    assert OperatorConfig.model_validate(config.model_dump(by_alias=True)) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pollSecond: 5", "pollSecond"),
        ("pollSeconds: 0", "pollSeconds"),
        ("reconcileWorkers: many", "reconcileWorkers"),
        ("headAccess: carrier-pigeon", "headAccess"),
        ("jobDefaults: {nodePools: [{nodes: 1}]}", "jobDefaults.nodePools.0.name"),
        ("namespaces: [Team]", "namespaces.0"),
        ("- a list", "dict"),
        ("a: [", "config.yaml"),
        ("a: !!python/object:os.system {}", "config.yaml"),
    ],
)
def test_a_bad_file_is_refused_with_the_field(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(BadConfig, match=said):
        load_config(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="nowhere"):
        load_config(tmp_path / "nowhere.yaml")


def test_the_key_is_made_once_and_stays() -> None:
    kube = FakeKube()
    key = key_in_cluster(kube, "rlhf-system", "key")
    assert len(key) == 32 and key_in_cluster(kube, "rlhf-system", "key") == key
    assert kube.objects[PLACE]["immutable"] is True
    assert key_in_cluster(FakeKube(), "rlhf-system", "key") != key


def test_the_key_of_another_operator_that_was_faster_is_taken() -> None:
    kube = FakeKube()
    other = base64.b64encode(b"o" * 32).decode()

    def be_faster(verb: str, kind: Kind) -> KubeError | None:
        if verb == "create" and PLACE not in kube.objects:
            kube.objects[PLACE] = {"metadata": {"name": "key"}, "data": {"key": other}}
        return None

    kube.trouble = be_faster
    assert key_in_cluster(kube, "rlhf-system", "key") == b"o" * 32


@pytest.mark.parametrize("data", [None, {}, {"key": ""}, {"key": "c2hvcnQ="}])
def test_a_secret_without_a_key_is_refused_and_kept(data: dict[str, str] | None) -> None:
    kube = FakeKube()
    kube.objects[PLACE] = {"metadata": {"name": "key"}, "data": data}
    with pytest.raises(BadConfig, match="at least 32: delete it"):
        key_in_cluster(kube, "rlhf-system", "key")
    assert kube.objects[PLACE]["data"] == data


def test_a_key_that_may_not_be_read_is_an_error_of_kubernetes() -> None:
    kube = FakeKube(trouble=lambda verb, kind: Forbidden("403"))
    with pytest.raises(Forbidden):
        key_in_cluster(kube, "rlhf-system", "key")


def test_a_key_in_a_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "key"
    key = key_in_file(file)
    assert len(key) == 32 and key_in_file(file) == key
    assert file.stat().st_mode & 0o077 == 0
    assert [each.name for each in file.parent.iterdir()] == ["key"]


def test_an_operator_that_dies_before_its_key_is_whole_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(number: int) -> bytes:
        raise SystemExit

    monkeypatch.setattr("secrets.token_bytes", die)
    with pytest.raises(SystemExit):
        key_in_file(tmp_path / "key")
    monkeypatch.undo()
    assert len(key_in_file(tmp_path / "key")) == 32


def test_a_key_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"short")
    with pytest.raises(BadConfig, match="got 5 bytes"):
        key_in_file(file)
