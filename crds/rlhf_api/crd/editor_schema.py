"""The JSON schema of a manifest, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from rlhf_api.base import Contract
from rlhf_api.limits import Schema
from rlhf_api.spec.job import RLHFJob

SCHEMA_ID = "https://rlhf-operator.dev/schemas/rlhfjob.v1alpha1.json"


def editor_schema() -> Schema:
    """The schema under wire names, with one-line descriptions and no titles."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    return head | cleaned_schema(RLHFJob)


def cleaned_schema(model: type[Contract]) -> Schema:
    """The schema of one model in the same form, without a head."""
    cleaned = _cleaned(model.model_json_schema(by_alias=True))
    assert isinstance(cleaned, dict)
    return cleaned


def _cleaned(node: Any, *, names: bool = False) -> Any:
    """Drop titles and object defaults.

    Args:
        names: True if the keys of the node are names of fields or types.
    """
    if isinstance(node, list):
        return [_cleaned(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if names or not _is_noise(key, value)}
    if "patternProperties" in kept:
        kept = kept | {"additionalProperties": False}
    return {
        key: " ".join(value.split())
        if key == "description" and isinstance(value, str)
        else _cleaned(value, names=not names and key in ("properties", "$defs"))
        for key, value in kept.items()
    }


def _is_noise(key: str, value: Any) -> bool:
    return key == "title" or (key == "default" and (value is None or isinstance(value, dict)))
