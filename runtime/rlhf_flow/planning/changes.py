"""Changes of a manifest and of its devices: what they are, and how a field gets another value.
Pure; whether one is enough is tried elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlhf_api.plan import Pool
from rlhf_api.spec.job import RLHFJob

Path = tuple[str | int, ...]
"""Names of fields, numbers of entries and keys, from a job on."""


@dataclass(frozen=True)
class Changed:
    """A job, and its devices before placement.maxDevices takes fewer."""

    job: RLHFJob
    devices: tuple[Pool, ...]


@dataclass(frozen=True)
class Change:
    """Something that may be changed, more or less, to take memory off devices."""

    values: Sequence[Any]
    """The mildest first."""
    apply: Callable[[Changed, Any], Changed]
    text: Callable[[Any], str]
    """The order to change it, for people."""


def smaller_number(name: str, path: Path, job: RLHFJob, least: int) -> Change:
    """A smaller number than the manifest's."""
    return Change(
        range(value_at(job, path) - 1, least - 1, -1),
        partial(with_field, path=path),
        lambda value: f"lower {name} to at most {value}",
    )


def with_field(changed: Changed, new: Any, path: Path) -> Changed:
    """With another value of a field. Rules of the manifest are not applied: values obey them."""
    return Changed(_replaced(changed.job, path, new), changed.devices)


def _replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    name, *rest = path
    inner = _replaced(_step(value, name), tuple(rest), new)
    if isinstance(value, Mapping):
        return {**value, name: inner}
    if isinstance(value, tuple):
        return (*value[: int(name)], inner, *value[int(name) + 1 :])
    return value.model_copy(update={str(name): inner})


def value_at(job: RLHFJob, path: Path) -> Any:
    """The value of a field."""
    value: Any = job
    for name in path:
        value = _step(value, name)
    return value


def _step(value: Any, name: str | int) -> Any:
    return getattr(value, str(name)) if hasattr(value, "model_copy") else value[name]
