"""The JSON schema of a manifest, for editors that complete and check YAML while it is written."""

from __future__ import annotations

from typing import Any

from rlhf_api.base import Contract
from rlhf_api.limits import Schema
from rlhf_api.spec.job import RLHFJob

SCHEMA_ID = "https://rlhf-operator.dev/schemas/rlhfjob.v1alpha1.json"


def editor_schema() -> Schema:
    """Return the schema under wire names, with descriptions on one line and without noise."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    return head | cleaned_schema(RLHFJob)


def cleaned_schema(model: type[Contract]) -> Schema:
    """The schema of one model, in the same form and without a head."""
    cleaned = _cleaned(model.model_json_schema(by_alias=True))
    assert isinstance(cleaned, dict)
    return cleaned


def _cleaned(node: Any, *, names: bool = False) -> Any:
    """Drop titles and object defaults; `names` says that the keys are names of fields or types."""
    if isinstance(node, list):
        return [_cleaned(each) for each in node]
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
