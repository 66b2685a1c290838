"""Changes of a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any


def merge(into: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Merge maps; everything else is replaced."""
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = deepcopy(value)
