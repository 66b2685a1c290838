"""What the CRD lets in: every manifest that the models take, and nothing hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.reading.manifest import load_file
from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.reading.yaml_documents import read_documents
from rlhf_api.spec.telemetry import TelemetrySpec

from .admission import admit
from .rule_cases import GOOD
from .test_bad_manifests import CASES, manifest
from .test_crd_defaults import MANIFESTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_a_good_manifest_is_let_in_as_it_is(file: Path) -> None:
    (document,) = read_documents(file.read_text("utf-8"))[0]
    admission = admit(document.value)
    assert (admission.dropped, admission.invalid, admission.broken) == ([], [], [])
    assert load_file(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("spec=7", "spec: 7 is not of type 'object'"),
        ("spec=[]", "spec: [] is not of type 'object'"),
        ("spec.models=[]", "spec.models: [] is not of type 'object'"),
        ("spec.models={}", "spec.models: {}"),
        ("spec.models.actor=null", "spec.models: {}"),
        ("spec.rewards={}", "spec.rewards: {} is not of type 'array'"),
        ("spec.rewards=[null]", "spec.rewards.0: None"),
        ("spec.schedule.steps='10'", "spec.schedule.steps: '10' is not of type 'integer'"),
        ("spec.schedule.steps=1.5", "spec.schedule.steps: 1.5 is not of type 'integer'"),
        ("spec.schedule.steps=0", "spec.schedule.steps: 0 is less than the minimum"),
        ("spec.schedule.steps=9999999999", "spec.schedule.steps: 9999999999 is greater"),
        ("spec.rollout.temperature=0", "spec.rollout.temperature: 0 is less than or equal to"),
        ("spec.rollout.temperature='hot'", "'hot' is not of type 'number'"),
        ("spec.suspend='yes'", "spec.suspend: 'yes' is not of type 'boolean'"),
        ("spec.algorithm.type=dpo", "spec.algorithm.type: 'dpo' is not one of"),
        ("spec.rewards[0].function.entrypoint=os.system", "does not match"),
        ("spec.rewards=[{http: {url: 'ftp://host/x'}}]", "does not match"),
        ("spec.rewards=[{http: {url: 'http://me:secret@host/x'}}]", "does not match"),
        ("spec.rewards[0].function.parameters={a: [1]}", "[1] is expected to be empty"),
        ("spec.rewards[0].function.parameters={a: []}", "a: []"),
        ("spec.rewards[0].function.parameters={a: {b: 1}}", "is expected to be empty"),
        ("spec.rewards[0].function.parameters={a: {}}", "a: {}"),
        (f"spec.rewards[0].function.parameters={{a: {'x' * 1025}}}", "is too long"),
        (f"spec.data.train.path={'x' * 1025}", "is too long"),
        ("spec.data.train={sources: []}", "spec.data.train.sources: []"),
        ("spec.data.train={sources: [{path: /a, weight: 0}]}", "0 is less than or equal to"),
        ("spec.data.train={sources: [{path: /a, name: '1'}]}", "'1' does not match"),
        (f"spec.data.train.systemPrompt={'x' * 16385}", "is too long"),
        (f"spec.failurePolicy.rules={[{'action': 'Fail', 'onReason': 'A'}] * 33}", "is too long"),
        ("spec.resources.nodePools[0].resources.memory=lots", "does not match"),
        (
            "spec.rewards=[{function: {entrypoint: 'a:b'}}, {function: {entrypoint: 'a:c'}}]",
            "spec.rewards: reward twice",
        ),
        (f"spec.resources.nodePools={[{'name': f'a{i}'} for i in range(17)]}", "is too long"),
        (f"spec.placement.groups={[{'roles': [f'a{i}']} for i in range(17)]}", "is too long"),
        ("spec.placement.groups=[{roles: []}]", "spec.placement.groups.0.roles: []"),
        ("spec.checkpoint=3", "spec.checkpoint: 3 is not of type 'object'"),
    ],
)
def test_what_is_of_the_wrong_kind_or_size_is_refused(change: str, says: str) -> None:
    admission = admit(apply_overrides(GOOD, [change]))
    assert any(says in fault for fault in admission.invalid), admission.invalid


def test_rewards_without_names_are_of_one_name() -> None:
    reward = "{function: {entrypoint: 'a:b'}}"
    (fault,) = admit(apply_overrides(GOOD, [f"spec.rewards=[{reward}, {reward}]"])).invalid
    assert fault == "spec.rewards: reward twice"


def test_unknown_fields_are_dropped_and_named() -> None:
    """Nothing of them is stored; kubectl refuses them by itself, unless it is told not to."""
    changes = ["spec.seed=3", "spec.rollout.bestOf=4", "spec.rewards[0].jury={path: /m}"]
    admission = admit(apply_overrides(GOOD, changes))
    assert {*admission.dropped} == {"spec.rollout.bestOf", "spec.rewards[0].jury", "spec.seed"}
    assert admission.document == admit(GOOD).document


def deep(levels: int) -> dict[str, Any]:
    """Maps in maps."""
    document: dict[str, Any] = {}
    for _ in range(levels):
        document = {"spec": document}
    return document


def test_depth_is_no_harm() -> None:
    admission = admit(GOOD | {"spec": GOOD["spec"] | deep(50)})
    assert admission.dropped == ["spec.spec"]


ELSEWHERE = ("apiVersion", "kind", "metadata.labels", "metadata.name", "metadata.uid")
"""Fields that the API server checks without the CRD, or writes itself."""


def readable() -> dict[str, Any]:
    """The bad manifests that are YAML, can be sent as JSON and are bad in what the CRD checks."""
    found = {}
    for name, case in CASES.items():
        documents, problems = read_documents(manifest(case))
        if not problems and not case.path.startswith(ELSEWHERE) and "finite" not in case.says[0]:
            found[name] = documents[0].value
    return found


@pytest.mark.parametrize("name", readable())
def test_what_the_loader_refuses_is_not_let_in_as_it_is(name: str) -> None:
    admission = admit(readable()[name])
    if name == "a section without value":
        defaults = TelemetrySpec().model_dump(by_alias=True, exclude_none=True)
        assert admission.document["spec"]["telemetry"] == defaults
    else:
        assert admission.is_refused or admission.dropped


def test_most_of_the_loader_s_cases_are_readable() -> None:
    assert len(readable()) > 50
