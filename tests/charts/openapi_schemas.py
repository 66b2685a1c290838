"""JSON schemas of kinds, made from what an API server says of itself, in kubeconform's layout."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..cluster.kubectl import Kubectl

LOCATION = "{{ .Group }}/{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json"
"""Where a kind's schema is; the core group's name is its version."""


def write_schemas(kubectl: Kubectl, kinds: Iterable[tuple[str, str]], folder: Path) -> None:
    """Write the schemas of kinds, given as API version and name, such as apps/v1 and Deployment."""
    wanted = set(kinds)
    for version in {version for version, _ in wanted}:
        prefix = "apis" if "/" in version else "api"
        document = json.loads(kubectl("get", "--raw", f"/openapi/v3/{prefix}/{version}"))
        definitions = document["components"]["schemas"]
        strict = {name: _strict(schema) for name, schema in definitions.items()}
        for name, schema in definitions.items():
            for kind in schema.get("x-kubernetes-group-version-kind", ()):
                if (version, kind["kind"]) not in wanted:
                    continue
                target = folder / (kind["group"] or kind["version"])
                target.mkdir(parents=True, exist_ok=True)
                root = {"$ref": f"#/definitions/{name}", "definitions": strict}
                file = f"{kind['kind'].lower()}_{kind['version']}.json"
                (target / file).write_text(json.dumps(root))


def _strict(node: Any) -> Any:
    """With references as kubeconform follows them, and no unknown fields."""
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    written = {key: _strict(value) for key, value in node.items()}
    if isinstance(written.get("$ref"), str):
        written["$ref"] = written["$ref"].replace("#/components/schemas/", "#/definitions/")
    closed = "properties" in written and written.get("type") == "object"
    if closed and not written.get("x-kubernetes-preserve-unknown-fields"):
        written.setdefault("additionalProperties", False)
    return written
