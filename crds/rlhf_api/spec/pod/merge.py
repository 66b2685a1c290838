"""One pod template from several: those of the chart, of all pods, and of one pool or the head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from rlhf_api.base import Contract
from rlhf_api.spec.pod.template import PodTemplate

Model = TypeVar("Model", bound=Contract)

# Lists whose entries replace those with the same value of this field. Other lists are appended.
_KEYS: Mapping[str, str] = {
    "volumes": "name",
    "volume_mounts": "mount_path",
    "init_containers": "name",
    "sidecars": "name",
}
# Objects whose fields are merged. Others, such as affinity, are replaced as a whole.
_MERGED_OBJECTS = ("resources", "security_context")


def merge_pods(*layers: PodTemplate) -> PodTemplate:
    """Merge templates, the more specific ones last.

    Maps are merged by key and lists appended, without repeated entries. Everything else is
    replaced by the last template that sets it to another value than the default. The result's
    rules are not checked: `pod_problems` does.
    """
    merged, *others = layers
    for layer in others:
        merged = _merge(merged, layer)
    return merged


def _merge(base: Model, own: Model) -> Model:
    # By values: a stored template does not tell which of them were written.
    update = {
        name: _value(name, getattr(base, name), getattr(own, name))
        for name, field in type(own).model_fields.items()
        if getattr(own, name) != field.default
    }
    return base.model_copy(update=update)


def _value(name: str, base: Any, own: Any) -> Any:
    if name in _MERGED_OBJECTS:
        return _merge(base, own)
    if isinstance(own, dict):
        return base | own
    if isinstance(own, tuple):
        return tuple(_by_key(name, (*base, *own)).values())
    return own


def _by_key(name: str, entries: tuple[Any, ...]) -> dict[Any, Any]:
    if name not in _KEYS:
        return {_text(entry): entry for entry in entries}
    return {getattr(entry, _KEYS[name]): entry for entry in entries}


def _text(entry: Any) -> str:
    return str(entry.model_dump_json() if isinstance(entry, Contract) else entry)
