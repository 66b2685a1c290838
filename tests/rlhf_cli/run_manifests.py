"""Manifests that runs have left in their folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..merging import merge

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-sort-grpo.yaml"


def run_manifest(changes: Mapping[str, Any]) -> str:
    """Return example 01 with changes of its spec; None removes a field."""
    manifest = yaml.safe_load(EXAMPLE.read_text())
    merge(manifest["spec"], changes)
    text: str = yaml.safe_dump(manifest, sort_keys=False)
    return text
