"""RLHFJobs as json, yaml or names for `rlhf status -o`. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest


def serialize_job(document: Manifest, output: str) -> str:
    """An object as json, as yaml, or by its name as `kubectl get -o name` prints it."""
    if output == "name":
        group = Kind.JOB.api_version.partition("/")[0]
        return f"{Kind.JOB.kind.lower()}.{group}/{document['metadata']['name']}\n"
    return _text(_plain(document), output)


def serialize_jobs(documents: Sequence[Manifest], output: str) -> str:
    """Objects as one List, or as a name per line."""
    if output == "name":
        return "".join(serialize_job(document, output) for document in documents)
    items = [_plain(document) for document in documents]
    return _text({"apiVersion": "v1", "kind": "List", "items": items}, output)


def _plain(document: Manifest) -> Manifest:
    """A copy without managedFields, which are long and of no use to people."""
    # JSON makes a deep copy of plain types, as yaml needs them.
    plain: dict[str, Any] = json.loads(json.dumps(document))
    plain["metadata"].pop("managedFields", None)
    return plain


def _text(document: Manifest, output: str) -> str:
    if output == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text
