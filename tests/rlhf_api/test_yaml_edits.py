"""A field set in a text: what stood there before still does, and the text means what it should."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.problems import FieldPath
from rlhf_api.reading.overrides import assign
from rlhf_api.reading.yaml_documents import read_documents
from rlhf_api.reading.yaml_edits import CannotEdit, set_field

from ..depth import examples

NESTED = {"version": 1, "calls": [{"id": "a.b", "reads": ["x"]}, {"id": "c"}]}
FLAT = {"layers": 2, "tied": True}


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("a: 1\n", ("b",), 2, "a: 1\nb: 2\n"),
        ("a: 1", ("b",), 2, "a: 1\nb: 2\n"),
        ("a: 1\r\nc: 3\r\n", ("b",), FLAT, "a: 1\r\nc: 3\r\nb: {layers: 2, tied: true}\r\n"),
        (
            "# first\nm:\n    s: x   # a source\n    # more of it\n\nn: 1 # last\n",
            ("m", "shape"),
            FLAT,
            "# first\nm:\n    s: x   # a source\n    shape: {layers: 2, tied: true}\n"
            "    # more of it\n\nn: 1 # last\n",
        ),
        (
            "m:\n  text: |\n    one\n\n    two\nn: 1\n",
            ("m", "shape"),
            FLAT,
            "m:\n  text: |\n    one\n\n    two\n  shape: {layers: 2, tied: true}\nn: 1\n",
        ),
        (
            "rewards:\n- name: x\n  model: {path: m}   # theirs\n- name: y\n",
            ("rewards", 0, "model", "shape"),
            FLAT,
            "rewards:\n- name: x\n  model: {path: m, shape: {layers: 2, tied: true}}   # theirs\n"
            "- name: y\n",
        ),
        (
            "spec:\n  algorithm: {type: Custom, custom: {entrypoint: 'a:B'}}  # mine\n  n: 1\n",
            ("spec", "algorithm", "graph"),
            NESTED,
            "spec:\n  algorithm:  # mine\n    type: Custom\n    custom: {entrypoint: 'a:B'}\n"
            "    graph:\n      version: 1\n      calls:\n      - id: a.b\n        reads: [x]\n"
            "      - {id: c}\n  n: 1\n",
        ),
        (
            "graph: {old: [1, 2]}   # by rlhf fill\nn: 1\n",
            ("graph",),
            NESTED,
            "graph:\n  version: 1\n  calls:\n  - id: a.b\n    reads: [x]\n  - {id: c}   # by rlhf "
            "fill\nn: 1\n",
        ),
        ("g: null\nn: 1\n", ("g",), FLAT, "g: {layers: 2, tied: true}\nn: 1\n"),
        (
            '{"kind": "x", "m": {"s": 1}}\n',
            ("m", "shape"),
            {"tied": True, "calls": [1]},
            '{"kind": "x", "m": {"s": 1, "shape": {"tied": true, "calls": [1]}}}\n',
        ),
        ("m: {s: 1, } # c\n", ("m", "t"), 2, "m: {s: 1, t: 2, } # c\n"),
        ("x: &a 1\nm: {s: *a }\n", ("m", "t"), 2, "x: &a 1\nm: {s: *a, t: 2 }\n"),
        ("digest: 1\n", ("digest",), "12345e67890", "digest: '12345e67890'\n"),
        ("digest: 1\n", ("digest",), "0o17", "digest: '0o17'\n"),
    ],
)
def test_a_field_is_written_where_it_belongs(
    before: str, path: FieldPath, value: Any, after: str
) -> None:
    assert set_field(before, 0, path, value) == after


def test_of_several_documents_one_changes() -> None:
    text = "# nothing yet\n---\na: 1\n---\n# none\n---\na: 2 # second\n...\n---\na: 3\n"
    assert set_field(text, 1, ("b",), 0) == text.replace("# second\n", "# second\nb: 0\n")


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("x: &m {s: 1}\nm: *m\n", ("m", "t"), "m.t is within an alias"),
        ("x: &m {s: 1}\nm: *m\n", ("m",), "m is an alias"),
        ("x: &m {s: 1}\nm: *m\n", ("x", "t"), "cannot be set without changing more"),
        ("x: &m {s: 1}\nl: [*m]\n", ("l", 0, "t"), "within an alias"),
        ("m: {}\n", ("m", "t"), "m is no map with fields"),
        ("m: text\n", ("m", "t"), "m is no map with fields"),
    ],
)
def test_what_would_change_more_is_refused(text: str, path: FieldPath, said: str) -> None:
    with pytest.raises(CannotEdit, match=said):
        set_field(text, 0, path, 1)


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["a", "no", "1e5", "", "two words", "it's", "a: b", "# c", "'", "ü", "|"])
)
KEYS = st.sampled_from(["a", "b", "c", "on", "k: v", "1"])
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)
MAPS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(outer=MAPS, inner=MAPS, value=VALUES, flow=st.sampled_from([None, True, False]))
def test_it_means_what_it_should_however_it_is_written(
    outer: dict[str, Any], inner: dict[str, Any], value: Any, flow: bool | None
) -> None:
    document = {**outer, "m": inner}
    text = yaml.safe_dump(document, default_flow_style=flow, sort_keys=False)
    if [each.value for each in read_documents(text)[0]] != [document]:
        return  # YAML 1.1 writes some texts as 1.2 does not read them
    edited = set_field(text, 0, ("m", "field"), value)
    expected = copy.deepcopy(document)
    assign(expected, ("m", "field"), value)
    assert [each.value for each in read_documents(edited)[0]] == [expected]
    assert set_field(edited, 0, ("m", "field"), value) == edited, "a second time changes nothing"
