"""Pods as a job shapes them: what may be set, what not and why, and how templates are merged."""

from __future__ import annotations

import copy

import pytest

from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.reading.validation import validate_document
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.pod.merge import merge_pods
from rlhf_api.spec.pod.template import RESERVED, PodTemplate

from .pod_cases import EVERYTHING, REFUSED
from .rule_cases import GOOD, Case


def template(**fields: object) -> PodTemplate:
    return PodTemplate.model_validate(fields)


def test_a_template_with_every_field_is_valid_for_the_head_and_each_pool() -> None:
    assert {*EVERYTHING} == {str(field.alias) for field in PodTemplate.model_fields.values()}
    for place in ("pod", "headPod", "nodePools"):
        document = copy.deepcopy(GOOD)
        resources = document["spec"]["resources"]
        holder = resources["nodePools"][0] if place == "nodePools" else resources
        holder["pod" if place == "nodePools" else place] = EVERYTHING
        assert validate_document(document)[1] == []


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_field_that_does_not_fit_is_refused_in_words(case: Case) -> None:
    _, problems = validate_document(apply_overrides(GOOD, case.changes))
    assert case.field in {problem.path for problem in problems}, problems
    message = next(problem.message for problem in problems if problem.path == case.field)
    assert case.says in message and "\n" not in message


def test_no_field_is_both_offered_and_reserved() -> None:
    assert not {str(field.alias) for field in PodTemplate.model_fields.values()} & {*RESERVED}


def test_a_place_of_a_field_that_cannot_be_set_is_its_key() -> None:
    # So that a message about a file names the line of the field.
    _, (problem,) = validate_document(apply_overrides(GOOD, ["spec.resources.pod.command=[a]"]))
    assert problem.message == (
        "a field that a job cannot set: got command; remove it: the operator starts Ray by a "
        "command of its own"
    )


def test_maps_are_merged_lists_appended_and_the_rest_replaced() -> None:
    shared = template(
        labels={"a": "1", "b": "1"},
        tolerations=[{"key": "gpu"}, {"key": "slow"}],
        volumes=[{"name": "data", "emptyDir": {}}],
        affinity={"podAffinity": {}},
        resources={"limits": {"cpu": "1", "memory": "1Gi"}},
        securityContext={"fsGroup": 5, "runAsUser": 6},
        schedulerName="one",
        automountServiceAccountToken=True,
    )
    own = template(
        labels={"b": "2"},
        tolerations=[{"key": "slow"}, {"key": "spot"}],
        volumes=[{"name": "data", "configMap": {"name": "c"}}, {"name": "x", "emptyDir": {}}],
        affinity={"nodeAffinity": {}},
        resources={"limits": {"cpu": "2"}},
        securityContext={"runAsUser": 7},
        automountServiceAccountToken=False,
    )
    merged = merge_pods(shared, own)
    assert merged.labels == {"a": "1", "b": "2"}
    assert [taint.key for taint in merged.tolerations] == ["gpu", "slow", "spot"]
    assert [volume.name for volume in merged.volumes] == ["data", "x"]
    assert merged.volumes[0].config_map is not None and merged.volumes[0].empty_dir is None
    assert merged.affinity == own.affinity
    assert merged.resources.limits == {"cpu": "2", "memory": "1Gi"}
    assert (merged.security_context.fs_group, merged.security_context.run_as_user) == (5, 7)
    assert merged.scheduler_name == "one" and merged.automount_service_account_token is False


def test_a_stored_template_merges_like_the_written_one() -> None:
    shared, own = template(**EVERYTHING), template(labels={"x": "y"})
    stored = PodTemplate.model_validate_json(own.model_dump_json(by_alias=True))
    assert merge_pods(shared, stored) == merge_pods(shared, own)
    assert merge_pods(shared, PodTemplate()) == shared == merge_pods(PodTemplate(), shared)


def test_a_pool_has_the_fields_of_all_pods_and_its_own() -> None:
    document = apply_overrides(
        GOOD,
        [
            "spec.resources.pod={labels: {a: b}}",
            "spec.resources.headPod={nodeSelector: {c: d}}",
            "spec.resources.nodePools[0].pod={nodeSelector: {e: f}}",
        ],
    )
    resources = RLHFJob.model_validate(document).spec.resources
    (pool,) = resources.node_pools
    head, workers = resources.merged_head_pod, resources.merged_pod(pool)
    assert head.labels == workers.labels == {"a": "b"}
    assert (head.node_selector, workers.node_selector) == ({"c": "d"}, {"e": "f"})
