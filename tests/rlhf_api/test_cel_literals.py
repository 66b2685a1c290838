"""Rules as entries of a schema: literals, names and messages."""

from __future__ import annotations

import celpy
import pytest

from rlhf_api.cel_literals import member, text, texts
from rlhf_api.exclusive_fields import exactly_one
from rlhf_api.rules import Rule


@pytest.mark.parametrize("value", ["", "plain", "it's", 'a "b"', "back\\slash", r"^\d+\.\w$"])
def test_a_text_survives_as_a_literal(value: str) -> None:
    environment = celpy.Environment()
    assert environment.program(environment.compile(text(value))).evaluate({}) == value


def test_lists_of_texts_are_literals() -> None:
    assert texts(["a", "b"]) == "['a', 'b']"


def test_fields_of_reserved_names_are_escaped_as_kubernetes_does() -> None:
    assert member("self", "spec") == "self.spec"
    assert member("self", "function") == "self.__function__"
    assert member("self", "in") == "self.__in__"


@pytest.mark.parametrize("name", ["a-b", "a.b", "a/b", "__a__", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name for a field"):
        member("self", name)


def test_an_entry_has_a_message_with_and_without_what_stands_there() -> None:
    rule = Rule("self.a != 'x'", what="a bad a", got="self.a", allowed="not x", do="change it")
    assert rule.document() == {
        "rule": "self.a != 'x'",
        "message": "a bad a: allowed not x; change it",
        "messageExpression": "'a bad a: got ' + self.a + ', allowed not x; change it'",
    }


def test_an_entry_names_field_and_kind_of_error_where_the_rule_does() -> None:
    rule = Rule("true", "w", "d", field=".a.b", reason="FieldValueForbidden")
    assert rule.document() == {
        "rule": "true",
        "message": "w; d",
        "fieldPath": ".a.b",
        "reason": "FieldValueForbidden",
    }


@pytest.mark.parametrize(
    ("given", "holds", "got"),
    [
        ([], False, "none"),
        (["a"], True, "a"),
        (["c"], True, "c"),
        (["a", "c"], False, "a and c"),
        (["b", "c"], False, "b and c"),
        (["a", "b", "c"], False, "a and b and c"),
    ],
)
def test_exactly_one_counts_and_lists_what_is_there(
    given: list[str], holds: bool, got: str
) -> None:
    entry = exactly_one(["a", "b", "c"]).document()
    environment = celpy.Environment()
    value = {"self": celpy.json_to_cel(dict.fromkeys(given, 1))}
    results = [
        environment.program(environment.compile(entry[word])).evaluate(value)
        for word in ("rule", "messageExpression")
    ]
    assert results == [
        holds,
        f"exactly one of a, b, c is needed: got {got}; set one of them and remove the rest",
    ]
