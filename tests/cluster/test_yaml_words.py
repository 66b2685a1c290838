"""The real kubectl reads words of YAML as `rlhf validate` expects it to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_api.reading.yaml_scalars import kubectl_scalar

from ..rlhf_api.yaml_words import ALIKE, DIFFERENT
from .kubectl import Kubectl

pytestmark = pytest.mark.cluster


def test_kubectl_reads_words_as_expected(kubectl: Kubectl, tmp_path: Path) -> None:
    words = [*DIFFERENT, *ALIKE]
    file = tmp_path / "words.yaml"
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\n"
    file.write_text(head + "data:\n  words:\n" + "".join(f"  - {word}\n" for word in words))
    # Local: the file is parsed and printed, and no server would take such data.
    shown = kubectl("annotate", "--local", "-f", str(file), "a=b", "-o", "json")
    values = json.loads(shown)["data"]["words"]
    expected = [kubectl_scalar(word) for word in words]
    differing = [
        (word, value, other)
        for word, value, other in zip(words, values, expected, strict=True)
        if (value, isinstance(value, bool)) != (other, isinstance(other, bool))
    ]
    assert differing == []
