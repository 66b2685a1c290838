"""Models that transformers cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.engines.model_files import read_config
from rlhf_runtime.errors import UnsupportedModel


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "unheard-of"}, "has model type `unheard-of` but Transformers does not"),
        ({}, "Unrecognized model in"),
        (
            {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 5},
            r"hidden size \(128\) is not a multiple of the number of attention heads \(5\)",
        ),
    ],
)
def test_a_kind_that_is_not_known_is_the_models_fault(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=message) as caught:
        read_config(tmp_path)
    assert str(caught.value).endswith("a kind that it supports, or correct config.json")
    assert "pip install" not in str(caught.value)
