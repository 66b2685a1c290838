"""Fields of an object as server-side apply counts them: leaves of maps, and keyed list items."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Leaf = tuple[str, ...]
"""Path of a field."""
KEYS: dict[Leaf, Callable[[Any], str]] = {
    ("metadata", "finalizers"): str,
    ("metadata", "ownerReferences"): lambda item: str(item["uid"]),
}
"""Lists whose items are fields, with the key of an item; other lists are one field."""
SERVERS = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
"""Metadata that only the API server writes."""


def leaves(object: Mapping[str, Any]) -> dict[Leaf, Any]:
    """The fields of an object that writers own, without its status."""
    others = ("apiVersion", "kind", "status")
    return dict(_leaves({name: object[name] for name in object if name not in others}))


def _leaves(node: Any, path: Leaf = ()) -> Iterator[tuple[Leaf, Any]]:
    if path in KEYS:
        yield from (((*path, KEYS[path](item)), item) for item in node)
    elif isinstance(node, Mapping) and (node or path in ((), ("metadata",))):
        for name, value in node.items():
            if not (path == ("metadata",) and name in SERVERS):
                yield from _leaves(value, (*path, name))
    else:
        yield path, node


def set_leaf(object: dict[str, Any], leaf: Leaf, value: Any) -> None:
    """Set a field."""
    node: Any = object
    if leaf[:-1] in KEYS:
        items = object["metadata"].setdefault(leaf[1], [])
        others = [item for item in items if KEYS[leaf[:-1]](item) != leaf[-1]]
        object["metadata"][leaf[1]] = items if value in items else [*others, value]
        return
    for name in leaf[:-1]:
        node = node.setdefault(name, {})
    node[leaf[-1]] = copy.deepcopy(value)


def remove_leaf(object: dict[str, Any], leaf: Leaf) -> None:
    """Remove a field, and what is empty without it."""
    parents: list[Any] = [object]
    for name in leaf[:-1]:
        parents.append(parents[-1].get(name, {}))
    if leaf[:-1] in KEYS:
        key = KEYS[leaf[:-1]]
        parents[-1][:] = [item for item in parents[-1] if key(item) != leaf[-1]]
    else:
        parents[-1].pop(leaf[-1], None)
    for parent, name in reversed(list(zip(parents, leaf[:-1], strict=False))):
        if not parent.get(name):
            parent.pop(name, None)


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """An object after a merge patch."""
    result = copy.deepcopy(dict(old))
    for name, value in new.items():
        below = result.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            result[name] = merged(below, value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def matches_labels(object: Mapping[str, Any], selector: str) -> bool:
    """True if an object has the labels `a=b,c`."""
    labels = object["metadata"].get("labels") or {}
    pairs = [part.partition("=") for part in selector.split(",") if part]
    return all(labels.get(name) == value if sign else name in labels for name, sign, value in pairs)


def matches_fields(object: Mapping[str, Any], selector: str) -> bool:
    """True if an object has the fields `a.b=c,d=e`."""
    for name, _, value in (part.partition("=") for part in selector.split(",") if part):
        node: Any = object
        for part in name.split("."):
            node = node.get(part, {})
        if node != value:
            return False
    return True
