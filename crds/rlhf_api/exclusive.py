"""The rule 'exactly one of these fields', with one message for all its uses."""

from __future__ import annotations

from pydantic.alias_generators import to_camel

from rlhf_api.base import Contract


def require_exactly_one(model: Contract, *fields: str) -> str:
    """Return the name of the only field of `fields` that is set; raise ValueError otherwise."""
    given = [field for field in fields if getattr(model, field) is not None]
    if len(given) != 1:
        allowed = ", ".join(to_camel(field) for field in fields)
        got = " and ".join(to_camel(field) for field in given) or "none"
        todo = "keep one of them and remove the rest" if given else "add one of them"
        raise ValueError(f"exactly one of {allowed} is needed: got {got}; {todo}")
    return given[0]
