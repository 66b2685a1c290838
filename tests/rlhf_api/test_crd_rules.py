"""Every rule of the CRD: what it refuses and what not, in which words, and as the models do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from rlhf_api.base import Contract
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.reading.validation import validate_document
from rlhf_api.rules import Rule

from .admission import Admission, admit, root_schema
from .rule_cases import ALLOWED, CREATED, GOOD, UPDATED, Case, Update

pytestmark = pytest.mark.slow


@cache
def created(changes: tuple[str, ...]) -> Admission:
    return admit(apply_overrides(GOOD, changes))


@cache
def updated(case: Update) -> Admission:
    before = created(case.before)
    assert not before.is_refused
    return admit(apply_overrides(GOOD, case.changes), before.document)


@pytest.mark.parametrize("case", CREATED.values(), ids=CREATED.keys())
def test_a_rule_refuses_its_case_and_says_so(case: Case) -> None:
    admission = created(case.changes)
    assert admission.invalid == []
    (broken,) = admission.broken
    assert broken.path == case.field
    assert case.says in broken.message


@pytest.mark.parametrize("case", CREATED.values(), ids=CREATED.keys())
def test_the_models_refuse_the_same(case: Case) -> None:
    _, problems = validate_document(apply_overrides(GOOD, case.changes))
    (broken,) = created(case.changes).broken
    assert any(broken.message.startswith(each.what) for each in problems) or is_of_keys(broken.rule)


def is_of_keys(rule: str) -> bool:
    """Whether a rule is about a map's keys or the object's name: types of the models say these."""
    return rule.startswith(("self.all(key, key.", "self.metadata.name"))


def test_every_condition_has_its_check() -> None:
    models = [*models_below(Contract)]
    for rule in {rule for model in models for rule in model.all_validations()}:
        assert rule.check is not Rule.check, rule.what


def models_below(base: type[Contract]) -> Iterator[type[Contract]]:
    for model in base.__subclasses__():
        if model is not Alternatives:
            yield model
        yield from models_below(model)


@pytest.mark.parametrize("changes", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_at_the_limit_is_allowed_as_by_the_models(changes: tuple[str, ...]) -> None:
    admission = created(changes)
    assert (admission.dropped, admission.invalid, admission.broken) == ([], [], [])
    _, problems = validate_document(admission.manifest)
    assert problems == []


@pytest.mark.parametrize("case", UPDATED.values(), ids=UPDATED.keys())
def test_an_update_is_refused_or_not(case: Update) -> None:
    after = updated(case)
    assert after.invalid == []
    if not case.says:
        assert after.broken == []
        return
    (broken,) = after.broken
    assert case.says in broken.message
    assert broken.reason == "FieldValueForbidden"


def rules(node: Any) -> Iterator[dict[str, str]]:
    """Every rule of a schema."""
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", [])
        for each in node.values():
            yield from rules(each)


def test_every_rule_has_a_case_that_breaks_it() -> None:
    admissions = [
        *(created(case.changes) for case in CREATED.values()),
        *(updated(case) for case in UPDATED.values()),
    ]
    seen = {broken.rule for admission in admissions for broken in admission.broken}
    assert {rule["rule"] for rule in rules(root_schema()["properties"]["spec"])} - seen == set()


def test_messages_are_one_line_and_of_bounded_length() -> None:
    for rule in rules(root_schema()):
        assert "\n" not in rule["message"]
        # The API server takes the text of a number for endless and refuses such an expression.
        assert "string(" not in rule.get("messageExpression", "")


def test_a_message_with_a_value_of_several_lines_does_without_it() -> None:
    (broken,) = admit(
        apply_overrides(GOOD, ['spec.resources.nodePools[0]={name: a, device: CPU, gpu: "a\\nb"}'])
    ).broken
    assert "got" not in broken.message and "write device: GPU" in broken.message
