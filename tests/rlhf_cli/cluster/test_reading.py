"""Where a job's files are read from, and by which pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_api.spec.cluster import ImageSpec
from rlhf_cli.cluster.errors import NothingToRead, ReaderFailed
from rlhf_cli.cluster.location import (
    ClaimFolder,
    UriFolder,
    find_reader_settings,
    parse_claim,
    reader_settings,
)
from rlhf_cli.cluster.opening import ReadOptions, open_job_files
from rlhf_cli.cluster.reader import READER_LABEL, reader_pod, running_reader
from rlhf_cli.cluster.run_files import UriFiles
from rlhf_kube.errors import Unreachable
from rlhf_kube.kinds import Kind

from ...rlhf_kube.fake_kube import Document, FakeKube
from .objects import RUNNING, job, submission

CLAIM = {"storage": {"persistentVolumeClaim": {"claimName": "disk"}}}
IMAGE = {"runtime": "registry/rlhf:1", "pullPolicy": "Never", "pullSecrets": [{"name": "regcred"}]}
POOL = {"name": "a", "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}


def manifest(folder: str = "sort", **more: Any) -> Document:
    claim = ClaimFolder("disk", folder)
    return reader_pod(job(), claim, ImageSpec(runtime="registry/rlhf:1", **more), "abc123")


def test_the_reader_meets_the_restricted_profile() -> None:
    spec = manifest()["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert spec["automountServiceAccountToken"] is False


def test_the_reader_sees_the_jobs_folder_only_and_cannot_write() -> None:
    spec = manifest("team/sort")["spec"]
    claim = {"claimName": "disk", "readOnly": True}
    assert spec["volumes"] == [{"name": "run", "persistentVolumeClaim": claim}]
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "run", "mountPath": "/rlhf/run", "readOnly": True, "subPath": "team/sort"}
    ]
    assert "subPath" not in manifest("")["spec"]["containers"][0]["volumeMounts"][0]


def test_the_reader_sees_no_gpu() -> None:
    (container,) = manifest()["spec"]["containers"]
    assert container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def test_the_reader_ends_by_itself_and_with_its_job() -> None:
    pod = manifest()
    assert pod["spec"]["activeDeadlineSeconds"] == 6 * 3600
    assert pod["spec"]["restartPolicy"] == "Never"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("RLHFJob", "uid-of-sort")


def test_the_reader_is_not_taken_for_one_of_the_jobs_pods() -> None:
    labels = manifest()["metadata"]["labels"]
    assert labels[READER_LABEL] == "sort" and JOB_LABEL not in labels


def test_the_reader_is_pulled_as_the_jobs_pods_are() -> None:
    spec = manifest(pull_policy="Never", pull_secrets=({"name": "regcred"},))["spec"]
    assert spec["containers"][0]["imagePullPolicy"] == "Never"
    assert spec["imagePullSecrets"] == [{"name": "regcred"}]


@pytest.mark.parametrize(
    ("checkpoint", "artifacts", "place"),
    [
        ({}, {}, None),
        (CLAIM, {}, ClaimFolder("disk", "sort")),
        (
            {"storage": {"persistentVolumeClaim": {"claimName": "disk", "subPath": "a/b/"}}},
            {},
            ClaimFolder("disk", "a/b"),
        ),
        ({"storage": {"uri": "s3://bucket/x/"}}, {}, UriFolder("s3://bucket/x")),
        ({}, {"model": "pvc://other/team/sort/model"}, ClaimFolder("other", "team/sort")),
        ({}, {"model": "pvc://other/model"}, ClaimFolder("other", "")),
        ({}, {"report": "s3://bucket/x/report.html"}, UriFolder("s3://bucket/x")),
        (CLAIM, {"model": "/somewhere/else"}, ClaimFolder("disk", "sort")),
    ],
)
def test_a_jobs_folder_is_where_it_says(
    checkpoint: Any, artifacts: dict[str, str], place: Any
) -> None:
    found = job({"artifacts": artifacts}, checkpoint=checkpoint)
    assert reader_settings(found.name, found.spec, found.status.artifacts).location == place


def test_what_the_manifest_leaves_out_is_taken_from_the_one_in_force() -> None:
    cluster = FakeKube()
    for name, storage in (("old", "disk-1"), ("new", "disk-2")):
        claim = {"persistentVolumeClaim": {"claimName": storage}}
        spec: Document = {"checkpoint": {"storage": claim}}
        spec |= {"image": IMAGE, "resources": {"nodePools": [POOL]}}
        meta = {"name": name, "namespace": "team", "labels": {JOB_LABEL: "sort"}}
        data = {"job.yaml": yaml.safe_dump({"spec": spec})}
        cluster.create({**Kind.CONFIG_MAP.header, "metadata": meta, "data": data})
    cluster.merge(Kind.CONFIG_MAP, "team", "old", {"metadata": {"creationTimestamp": "2020"}})
    found = find_reader_settings(cluster, job())
    assert found.location == ClaimFolder("disk-2", "sort")
    assert found.image is not None and found.image.runtime == "registry/rlhf:1"
    assert [each.key for each in found.tolerations] == ["nvidia.com/gpu"]


def test_taints_are_tolerated_as_the_templates_of_pods_say() -> None:
    def tolerating(key: str) -> Document:
        return {"tolerations": [{"key": key, "operator": "Exists"}]}

    resources = {
        "pod": tolerating("all"),
        "headPod": tolerating("head"),
        "nodePools": [{**POOL, "pod": tolerating("pool")}],
    }
    status = {"defaults": {"pod": tolerating("chart")}}
    found = find_reader_settings(FakeKube(), job(status, resources=resources))
    keys = [each.key for each in found.tolerations]
    assert keys == ["nvidia.com/gpu", "chart", "all", "head", "pool"]


@pytest.mark.parametrize(
    ("text", "place"),
    [("disk", ("disk", "")), ("disk/a/b/", ("disk", "a/b")), ("pvc://disk/a", ("disk", "a"))],
)
def test_a_claim_may_be_named_by_hand(text: str, place: tuple[str, str]) -> None:
    assert parse_claim(text) == ClaimFolder(*place)
    with pytest.raises(NothingToRead):
        parse_claim("/a")


def test_of_a_job_that_has_not_begun_nothing_is_asked_for() -> None:
    waits = {"phase": "Pending", "reason": "ClaimNotFound"}
    with (
        pytest.raises(
            NothingToRead, match="has not started.* ClaimNotFound; `rlhf describe sort -n"
        ),
        open_job_files(FakeKube(), job(waits), ReadOptions(), print),
    ):
        pass


def test_a_place_or_an_image_that_nobody_knows_is_asked_for() -> None:
    cluster, said = FakeKube(), list[str]()
    with (
        pytest.raises(NothingToRead, match="--claim"),
        open_job_files(cluster, job({"attempts": 1}), ReadOptions(), said.append),
    ):
        raise AssertionError
    with (
        pytest.raises(NothingToRead, match="--image"),
        open_job_files(cluster, job(checkpoint=CLAIM), ReadOptions(), said.append),
    ):
        raise AssertionError
    assert not said and not cluster.deleted


def test_an_address_is_read_from_here() -> None:
    found = job(checkpoint={"storage": {"uri": "memory://bucket/x"}})
    with open_job_files(FakeKube(), found, ReadOptions(), print) as opened:
        assert isinstance(opened.run, UriFiles) and opened.ray is None


def starts(pod: Document) -> None:
    state = {"name": "reader", "state": {"running": {}}}
    pod["status"] = {"phase": "Running", "containerStatuses": [state]}


def never_pulls(pod: Document) -> None:
    waiting = {"reason": "ErrImageNeverPull", "message": "it is not here"}
    state = {"name": "reader", "state": {"waiting": waiting}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [state]}


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_the_reader_is_deleted_whatever_happens(error: type[BaseException] | None) -> None:
    cluster = FakeKube()
    cluster.kubelet = starts
    try:
        with running_reader(cluster, manifest(), print):
            assert cluster.list(Kind.POD, "team")
            if error is not None:
                raise error
    except (KeyboardInterrupt, ValueError) as raised:
        assert type(raised) is error
    assert cluster.deleted == ["pods/sort-reader-abc123"]
    assert not cluster.list(Kind.POD, "team")


def test_a_reader_that_does_not_start_says_why_and_is_deleted() -> None:
    cluster = FakeKube()
    cluster.kubelet = never_pulls
    with (
        pytest.raises(ReaderFailed, match="container reader: ErrImageNeverPull: it is not here"),
        running_reader(cluster, manifest(), print, start_seconds=0.0),
    ):
        raise AssertionError
    assert cluster.deleted == ["pods/sort-reader-abc123"]


def test_a_reader_that_was_perhaps_made_is_deleted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeKube()
    create = cluster.create

    def interrupted(*arguments: Any) -> None:
        create(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "create", interrupted)
    with pytest.raises(KeyboardInterrupt), running_reader(cluster, manifest(), print):
        raise AssertionError
    assert cluster.deleted == ["pods/sort-reader-abc123"]


def test_a_reader_that_cannot_be_deleted_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, said = FakeKube(), list[str]()
    cluster.kubelet = starts

    def away(*arguments: Any, **more: Any) -> None:
        raise Unreachable("gone")

    monkeypatch.setattr(cluster, "delete", away)
    with pytest.raises(ValueError, match="mine"), running_reader(cluster, manifest(), said.append):
        raise ValueError("mine")
    assert (
        said[-1].endswith("kubectl delete pod -n team -l rlhf-operator.dev/reader")
        and "sort-reader-abc123" in said[-1]
    )


def test_the_head_is_preferred_while_it_lives_and_a_named_claim_to_it() -> None:
    cluster = FakeKube()
    cluster.kubelet = starts
    cluster.create(submission("sort", "team"))
    labels = {"ray.io/cluster": "sort-1", "ray.io/node-type": "head"}
    meta = {"name": "sort-1-head-x", "namespace": "team", "labels": labels}
    cluster.create({**Kind.POD.header, "metadata": meta, "spec": {"containers": [{"name": "ray"}]}})
    found = job(RUNNING, checkpoint=CLAIM, image=IMAGE)
    with open_job_files(cluster, found, ReadOptions(), print) as opened:
        assert opened.ray is not None
    assert cluster.deleted == []
    with open_job_files(
        cluster, found, ReadOptions(claim="disk/x", image="busybox"), print
    ) as opened:
        (_, pod) = cluster.list(Kind.POD, "team")
        assert opened.ray is None
    assert json.dumps(pod).count('"busybox"') == 1 and '"regcred"' in json.dumps(pod)
    assert cluster.deleted == [f"pods/{pod['metadata']['name']}"]
