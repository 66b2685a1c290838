"""The CustomResourceDefinition of RLHFJob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from rlhf_api.api_names import GROUP, KIND, PLURAL, VERSION
from rlhf_api.cel_literals import text
from rlhf_api.crd.change_rules import change_rules
from rlhf_api.crd.structural import structural_schema
from rlhf_api.limits import Schema, describe_allowed
from rlhf_api.on_cluster import OWNER_LABEL, QUEUE_LABEL
from rlhf_api.rules import Rule
from rlhf_api.spec.job import Metadata, RLHFJob, RLHFJobSpec
from rlhf_api.status import RLHFJobStatus


def _label_path(label: str) -> str:
    # A dot in a name must not end it.
    return ".metadata.labels." + label.replace(".", "\\.")


# Columns of `kubectl get rlhfjobs`: title, type, path.
COLUMNS = (
    ("Phase", "string", ".status.phase"),
    ("Step", "integer", ".status.progress.step"),
    ("Steps", "integer", ".status.progress.totalSteps"),
    ("Reward", "string", ".status.progress.reward"),
    ("GPUs", "integer", ".status.gpus"),
    ("Busy", "integer", ".status.busyGpus"),
    ("Restarts", "integer", ".status.restarts.total"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
# Further columns with `--output wide`.
WIDE_COLUMNS = (
    ("Checkpoint", "integer", ".status.checkpoint.step"),
    ("Reason", "string", ".status.reason"),
    ("Queue", "string", _label_path(QUEUE_LABEL)),
    ("Owner", "string", _label_path(OWNER_LABEL)),
)

# Schema of metadata.
# A rule's field must be listed with a length limit. Otherwise the API server assumes that the name
# may be as long as a request, and refuses the rule for its cost.
_METADATA: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 253},
        "generateName": {"type": "string", "maxLength": 253},
    },
}


def crd() -> dict[str, Any]:
    """The complete object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["rlhf"],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def crd_yaml(annotations: Mapping[str, str] | None = None) -> str:
    """The object as a YAML file.

    Args:
        annotations: of the object.
    """
    head = "# Generated from the models by `make generate`.\n"
    definition = crd()
    if annotations:
        definition["metadata"]["annotations"] = dict(annotations)
    body: str = yaml.dump(
        definition, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True
    )
    return head + body


# Many YAML readers do not support aliases.
class _Dumper(yaml.SafeDumper):
    """Writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path} for name, kind, path in COLUMNS
        ]
        + [
            {"name": name, "type": kind, "jsonPath": path, "priority": 1}
            for name, kind, path in WIDE_COLUMNS
        ],
        "schema": {"openAPIV3Schema": _schema()},
    }


def _schema() -> Schema:
    spec = structural_schema(RLHFJobSpec)
    _shorten_repeated(spec, set())
    changes = [rule.document() for rule in change_rules(spec)]
    spec["x-kubernetes-validations"] = spec.get("x-kubernetes-validations", []) + changes
    docs = {name: str(field.description) for name, field in RLHFJob.model_fields.items()}
    return {
        "description": RLHFJob.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": docs["api_version"], "type": "string", "maxLength": 253},
            "kind": {"description": docs["kind"], "type": "string", "maxLength": 63},
            "metadata": _METADATA,
            "spec": spec,
            "status": structural_schema(RLHFJobStatus, open_values=True) | {"default": {}},
        },
        "x-kubernetes-validations": [_name_rule().document()],
    }


def _shorten_repeated(schema: Any, seen: set[str]) -> None:
    """Keep the first sentence of descriptions that the schema has before, in full.

    Args:
        schema: changed in place.
        seen: the descriptions so far; changed, too.
    """
    # An object's annotations have a limit, and `kubectl apply` keeps the schema in one of them.
    if isinstance(schema, list):
        for item in schema:
            _shorten_repeated(item, seen)
    elif isinstance(schema, dict):
        text = schema.get("description")
        if isinstance(text, str):
            if text in seen:
                schema["description"] = text.split(". ")[0].rstrip(".") + "."
            seen.add(text)
        for item in schema.values():
            _shorten_repeated(item, seen)


def _name_rule() -> Rule:
    """The models' limits of metadata.name, with advice."""
    name = Metadata.model_json_schema(by_alias=True)["properties"]["name"]
    return Rule(
        holds=f"self.metadata.name.size() <= {name['maxLength']} && "
        f"self.metadata.name.matches({text(name['pattern'])})",
        what="a name that a job's cluster cannot be given",
        got="self.metadata.name",
        allowed=describe_allowed(name),
        do="rename the job",
        field=".metadata.name",
    )
