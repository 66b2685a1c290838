"""YAML as plain values with places: YAML 1.2, keys given twice, hostile texts."""

from __future__ import annotations

import math
import time

import pytest

from rlhf_api.reading.yaml_documents import MAX_DEPTH, Position, read_documents
from rlhf_api.reading.yaml_scalars import plain_scalar


def value_of(text: str) -> object:
    documents, problems = read_documents(text)
    assert not problems, problems
    return documents[0].value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("1e6", 1e6),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        ("12", 12),
        ("-7", -7),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("1e", "1e"),
        ("0x", "0x"),
        ("9" * 100, "9" * 100),
    ],
)
def test_words_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    assert plain_scalar(text) == value
    assert type(plain_scalar(text)) is type(value)


def test_quoted_words_are_texts() -> None:
    assert value_of("['1', \"true\", 'null', ! 5, !!str 6]") == ["1", "true", "null", "5", "6"]


def test_core_tags_are_read_and_others_refused() -> None:
    assert value_of('[!!int "5", !!float "1", !!bool "true", !!null ""]') == [5, 1, True, None]
    for text in ("!!int x", "!!python/name:os.system ''", "!mine {}", "!!set {a}", "!!binary aa"):
        _, (problem,) = read_documents(text)
        assert "a tag" in problem.what


def test_places_are_counted_from_one_and_block_values_are_found_at_their_key() -> None:
    (document,), _ = read_documents("a:\n  b: 1\n  c: [x,\n   y]\nd: 2\n")
    assert document.value_position(("a",)) == Position(1, 1)
    assert document.value_position(("a", "b")) == Position(2, 6)
    assert document.key_position(("a", "b")) == Position(2, 3)
    assert document.value_position(("a", "c", 1)) == Position(4, 4)
    assert document.value_position(("a", "zz", "deep")) == Position(1, 1)


def test_a_key_given_twice_is_noted_and_reading_goes_on() -> None:
    (document,), (problem,) = read_documents("a: 1\nb: 2\na: 3\nc: 4\n")
    assert document.value == {"a": 3, "b": 2, "c": 4}
    assert (problem.path, problem.line, problem.got) == ("a", 3, "the first in line 1")


def test_aliases_repeat_their_value() -> None:
    assert value_of("a: &x {b: [1]}\nc: *x\n") == {"a": {"b": [1]}, "c": {"b": [1]}}


def test_the_documents_before_a_syntax_error_are_kept() -> None:
    documents, (problem,) = read_documents("a: 1\n---\nb: [\n", "f.yaml")
    assert [document.value for document in documents] == [{"a": 1}]
    assert (problem.file, problem.line) == ("f.yaml", 4)


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60))
LONG = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "too much"),
        (LONG, "too much"),
        (CHAIN, "nested too deep"),
        ("[" * 100_000, "nested too deep"),
        ("{a: " * 50_000, "nested too deep"),
        ("- " * 100_000, "nested too deep"),
        ("&a [*a]", "an alias without its anchor"),
    ],
    ids=["bomb", "long", "chain", "lists", "maps", "block", "itself"],
)
def test_hostile_texts_end_soon_as_a_problem(text: str, words: str) -> None:
    started = time.monotonic()
    _, problems = read_documents(text)
    assert words in problems[-1].what
    assert time.monotonic() - started < 5.0


def test_nesting_up_to_the_limit_is_read() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_documents(text)[1] == []
