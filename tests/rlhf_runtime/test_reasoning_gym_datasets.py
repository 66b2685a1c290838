"""Names and parameters of the package's generators."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rlhf_runtime.reasoning_gym_datasets import (
    GeneratorUnusable,
    import_package,
    make_dataset,
)

pytest.importorskip("reasoning_gym", reason="an extra that needs a C compiler")


@pytest.mark.parametrize(
    ("name", "parameters", "text"),
    [
        ("chain_sums", {}, "got chain_sums, allowed names such as chain_sum, .* in all"),
        ("nothing", {}, "got nothing, allowed ab, acre"),
        ("chain_sum", {"min_term": 2}, "got min_term, .*did you mean min_terms, "),
        ("chain_sum", {"seeds": 2}, "got seeds, allowed .*max_terms"),
        ("chain_sum", {"min_terms": 0}, "refuses its parameters: .*min_terms must be positive"),
        ("chain_sum", {"min_terms": "a"}, "refuses its parameters: .*not supported between"),
    ],
)
def test_wrong_names_and_parameters_are_refused(
    name: str, parameters: dict[str, Any], text: str
) -> None:
    with pytest.raises(GeneratorUnusable, match=text):
        make_dataset(name, parameters)


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(GeneratorUnusable, match=r"install rlhf-operator\[reasoning-gym\]"):
        make_dataset("chain_sum", {})


def test_every_generator_has_seed_and_size() -> None:
    """A source sets both."""
    for _, settings in import_package().factory.DATASETS.values():
        assert {"seed", "size"} <= settings.__dataclass_fields__.keys()
