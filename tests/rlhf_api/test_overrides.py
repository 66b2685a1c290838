"""PATH=VALUE: what it sets, what it leaves alone, what it refuses."""

from __future__ import annotations

import pytest

from rlhf_api.errors import OverrideError, SeveralErrors
from rlhf_api.exits import ExitCode
from rlhf_api.reading.overrides import apply_overrides, override_at, parse_override


@pytest.mark.parametrize(
    ("override", "location", "value"),
    [
        ("spec.schedule.steps=3", ("spec", "schedule", "steps"), 3),
        ("a=1e-6", ("a",), 1e-6),
        ("a=yes", ("a",), "yes"),
        ('a="3"', ("a",), "3"),
        ("a=", ("a",), None),
        ("a=[1, {b: c}]", ("a",), [1, {"b": "c"}]),
        ("a[0].b=x=y", ("a", 0, "b"), "x=y"),
        ("a.0.b=1", ("a", 0, "b"), 1),
        ("metadata.labels[example.com/team]=x", ("metadata", "labels", "example.com/team"), "x"),
    ],
)
def test_paths_and_values_are_read(
    override: str, location: tuple[str | int, ...], value: object
) -> None:
    assert parse_override(override) == (location, value)


def test_the_document_itself_is_not_changed() -> None:
    document = {"a": {"b": [1, {"c": 2}]}}
    assert apply_overrides(document, ["a.b[1].c=3", "a.d.e=4"]) == {
        "a": {"b": [1, {"c": 3}], "d": {"e": 4}}
    }
    assert document == {"a": {"b": [1, {"c": 2}]}}


def test_later_overrides_win() -> None:
    assert apply_overrides({}, ["a.b=1", "a={b: 2, c: 3}", "a.c=4"]) == {"a": {"b": 2, "c": 4}}


def test_the_override_of_a_field_or_of_what_holds_it_is_found() -> None:
    overrides = ["a.b=1", "c={d: 2}"]
    assert override_at(("a", "b"), overrides) == "a.b=1"
    assert override_at(("c", "d"), overrides) == "c={d: 2}"
    assert override_at(("a",), overrides) is None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("spec.steps", "allowed PATH=VALUE"),
        ("=3", "allowed PATH=VALUE"),
        ("", "allowed PATH=VALUE"),
        ("a..b=3", "allowed PATH=VALUE"),
        ("a[=3", "allowed PATH=VALUE"),
        ("a=[1", "not YAML"),
        ("a.b.c=1", "a.b is no map, got 5; set that field"),
        ("list[2]=1", "allowed 0 to 1"),
        ("list.name=1", "allowed 0 to 1"),
        ("empty[0]=1", "the list is empty"),
    ],
)
def test_what_cannot_be_applied_is_refused_with_a_remedy(override: str, words: str) -> None:
    with pytest.raises(OverrideError) as raised:
        apply_overrides({"a": {"b": 5}, "list": [1, 2], "empty": []}, [override])
    assert words in str(raised.value)
    assert str(raised.value).startswith(f"--set {override}: "), "what was given is named"
    assert raised.value.exit_code is ExitCode.MANIFEST


def test_all_that_cannot_be_applied_are_told_at_once() -> None:
    with pytest.raises(SeveralErrors) as raised:
        apply_overrides({"a": {"b": 5}}, ["no-value", "a.b=6", "a.b.c=1"])
    assert [str(each).partition(": ")[0] for each in raised.value.errors] == [
        "--set no-value",
        "--set a.b.c=1",
    ]
    assert raised.value.exit_code is ExitCode.MANIFEST
