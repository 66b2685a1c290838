"""Texts that are written as YAML are texts for every reader."""

from __future__ import annotations

import pytest
import yaml

from rlhf_api.reading.yaml_documents import read_documents
from rlhf_api.reading.yaml_scalars import kubectl_scalar
from rlhf_api.yaml_dump import dump_yaml

from .yaml_words import ALIKE, DIFFERENT


@pytest.mark.parametrize("word", [*DIFFERENT, *ALIKE, "1e6", "1e-6", "08", "", " ", "a: b", "#"])
def test_texts_stay_texts_for_every_reader(word: str) -> None:
    value = {word or "empty": [word, {"key": word}]}
    text = dump_yaml(value)
    ((document,), problems) = read_documents(text)
    assert (document.value, document.ambiguous, problems) == (value, {}, [])
    assert yaml.safe_load(text) == value
    unquoted = text.splitlines()[1].removeprefix("- ")
    assert unquoted[:1] in ("'", '"') or kubectl_scalar(unquoted) == word


def test_numbers_and_words_stay_what_they_are() -> None:
    value = {"a": [1e-6, 1e22, 3, True, None, -0.5], "b": {"c": []}}
    ((document,), _) = read_documents(dump_yaml(value))
    assert document.value == value and document.ambiguous == {}
