"""What is made beside a job's cluster: its manifest, its token, its network policy."""

from __future__ import annotations

import base64
from typing import Any

import yaml

from rlhf_api.reading.validation import validate_document
from rlhf_api.spec.job import RLHFJob
from rlhf_operator.apply.build.owned_objects import config_map, network_policy, secret, token
from rlhf_operator.apply.build.owner import Owner

from .test_build_cluster import EVERYTHING, filled
from .world import manifest

OWNER = Owner("team", "sort", "12345678-aaaa")


def test_the_driver_reads_the_job_as_the_operator_has_it() -> None:
    for spec in ({}, EVERYTHING):
        job = filled(manifest(**spec))
        document = yaml.safe_load(config_map(OWNER, job)["data"]["job.yaml"])
        read, problems = validate_document(document)
        assert problems == [] and read == job


def test_a_token_is_known_only_to_who_knows_the_key() -> None:
    # printf team/12345678-aaaa | openssl dgst -sha256 -hmac kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk
    known = "9ba59370d87e19e52e146ad78bb0c5d865e6977501f81791de52c853a4224866"
    assert token(b"k" * 32, OWNER) == known
    others = [
        token(b"l" * 32, OWNER),
        token(b"k" * 32, Owner("other", "sort", "12345678-aaaa")),
        token(b"k" * 32, Owner("team", "sort", "87654321-aaaa")),
    ]
    assert known not in others and len(set(others)) == 3


def test_the_secret_holds_the_token_as_kuberay_wants_it() -> None:
    made = secret(OWNER, "s3cret")
    assert made["data"] == {"auth_token": base64.b64encode(b"s3cret").decode()}
    assert made["immutable"] is True


def test_owned_objects_belong_to_this_very_job() -> None:
    job = RLHFJob.model_validate(manifest())
    for made in (config_map(OWNER, job), secret(OWNER, "t"), network_policy(OWNER, None)):
        metadata = made["metadata"]
        assert metadata["name"].startswith("sort-12345678") and metadata["namespace"] == "team"
        assert [each["uid"] for each in metadata["ownerReferences"]] == [OWNER.uid]
        assert metadata["labels"]["rlhf-operator.dev/job"] == "sort"


def test_each_token_has_a_secret_of_its_own_whose_name_does_not_tell_it() -> None:
    names = [secret(OWNER, token)["metadata"]["name"] for token in ("s3cret", "other", "s3cret")]
    assert names[0] == names[2] != names[1] and "s3cret" not in names[0]


def ingress(operator_namespace: str | None) -> list[Any]:
    spec = network_policy(OWNER, operator_namespace)["spec"]
    assert spec["podSelector"] == {"matchLabels": {"rlhf-operator.dev/job": "sort"}}
    assert spec["policyTypes"] == ["Ingress"]
    return list(spec["ingress"])


def test_only_the_jobs_own_pods_and_the_operator_reach_its_pods() -> None:
    own, operator = ingress("rlhf-system")
    assert own == {"from": [{"podSelector": {"matchLabels": {"rlhf-operator.dev/job": "sort"}}}]}
    [peer] = operator["from"]  # one peer with both selectors: both must match
    assert peer["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "rlhf-system"
    }
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "rlhf-operator"}
    assert {each["port"] for each in operator["ports"]} == {8265, 8290}


def test_an_operator_outside_is_let_in_by_nobody() -> None:
    assert len(ingress(None)) == 1
