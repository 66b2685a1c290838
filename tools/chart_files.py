"""Generated files of the chart: values with schema and README, the CRD, the operator's roles."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from chart_values import ChartValues
from rlhf_api.base import Contract
from rlhf_api.crd.definition import crd_yaml
from rlhf_api.crd.editor_schema import cleaned_schema
from rlhf_api.reading.fields import FieldDoc, field_tree
from rlhf_api.spec.pod.template import PodTemplate
from rlhf_operator.permissions import OWN, PROXIED_HEADS, WATCHED, Permission

CHART = Path(__file__).resolve().parent.parent / "charts" / "rlhf-operator"
ORIGIN = "Made by `make generate`"
_WIDTH = 98


def values_yaml() -> str:
    """Default values, with their meaning in comments."""
    head = f"# {ORIGIN} from tools/chart_values.py; README.md lists the same as a table.\n"
    return head + "\n".join(_values(ChartValues(), indent=0)) + "\n"


def _values(model: Contract, indent: int) -> Iterator[str]:
    for name, field in type(model).model_fields.items():
        if field.alias == "global":
            continue  # a parent chart writes it
        value, space = getattr(model, name), " " * indent
        if indent == 0:
            yield ""  # a blank line before every top-level value
        prefix = f"{space}# "
        yield from textwrap.wrap(
            " ".join((field.description or "").split()),
            _WIDTH,
            initial_indent=prefix,
            subsequent_indent=prefix,
        )
        # An object with a model of the manifest, such as jobDefaults.head, is one value.
        if isinstance(value, Contract) and type(value).__module__ == ChartValues.__module__:
            yield f"{space}{field.alias}:"
            yield from _values(value, indent + 2)
        else:
            yield from textwrap.indent(_yaml({str(field.alias): _plain(value)}), space).splitlines()


def _plain(value: object) -> Any:
    """Convert to JSON types, without unset fields."""
    if isinstance(value, Contract):
        is_pod = isinstance(value, PodTemplate)
        # Of pods only what is set: their fields have no defaults of the chart.
        return value.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_defaults=is_pod
        )
    return [_plain(element) for element in value] if isinstance(value, tuple) else value


def _yaml(document: object) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return text


def values_schema() -> str:
    """JSON schema by which Helm checks values."""
    # Every Helm 3 understands this draft.
    schema = {"$schema": "http://json-schema.org/draft-07/schema#"} | cleaned_schema(ChartValues)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def readme() -> str:
    """README of the chart: its text, and a table of all values."""
    head = ["| value | default | meaning |", "|---|---|---|"]
    table = "\n".join([*head, *_rows(field_tree(ChartValues), ChartValues())])
    text = (CHART / "README.md.in").read_text(encoding="utf-8")
    assert text.count("@VALUES@") == 1
    return text.replace("@VALUES@", table)


def _rows(node: FieldDoc, default: Contract) -> Iterator[str]:
    for field, (name, info) in zip(node.fields, type(default).model_fields.items(), strict=True):
        value = getattr(default, name)
        if info.alias == "global":
            continue
        if isinstance(value, Contract) and type(value).__module__ == ChartValues.__module__:
            yield from _rows(field, value)
        else:
            yield _row(field, _plain(value))


def _row(field: FieldDoc, default: object) -> str:
    default_text = "" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"
    allowed = f" Allowed: {field.allowed}." if field.allowed.startswith("one of ") else ""
    cells = (f"`{field.path}`", default_text, f"{field.description}{allowed}")
    # A bar would end the cell.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def chart_crd() -> str:
    """Definition of RLHFJob for the chart."""
    # Without `keep`, uninstalling the chart would delete all jobs.
    return crd_yaml({"helm.sh/resource-policy": "keep"})


def permissions_template() -> str:
    """Rules of the operator's roles, as named templates."""
    head = f"{{{{- /* {ORIGIN} from operator/rlhf_operator/permissions.py. */ -}}}}\n"
    parts = {
        "watched": WATCHED,
        "proxiedHeads": PROXIED_HEADS,
        "own": OWN,
    }
    return head + "\n".join(_define(name, rules) for name, rules in parts.items())


def _define(name: str, permissions: tuple[Permission, ...]) -> str:
    rules = "\n".join(line for permission in permissions for line in _rule(permission))
    return f'{{{{- define "rlhf-operator.permissions.{name}" -}}}}\n{rules}\n{{{{- end }}}}\n'


def _rule(permission: Permission) -> Iterator[str]:
    yield f"# {permission.why}"
    yield f"- apiGroups: [{json.dumps(permission.group)}]"
    yield f"  resources: [{', '.join(permission.resources)}]"
    if permission.named:
        yield f'  resourceNames: [{{{{ include "rlhf-operator.{permission.named}" . | quote }}}}]'
    yield f"  verbs: [{', '.join(permission.verbs)}]"
