"""Which fields of a job may change, and when: the one list. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rlhf_api.problems import Problem
from rlhf_api.reading.model_errors import format_value
from rlhf_api.spec.job import RLHFJobSpec

FILLED_FIELDS = ("algorithm.graph", "models.*.shape", "rewards.*.model.shape")
"""Fields of spec that say what code and models are, for planning without them: `rlhf fill` writes
them. Whoever has code and models goes by these, and refuses a manifest that says something else."""

MUTABLE_WHILE_RUNNING = (
    *FILLED_FIELDS,
    "suspend",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "startDeadlineSeconds",
    "failurePolicy",
)
"""Fields of spec that may change at any time."""

MUTABLE_ON_RESUME = (
    *MUTABLE_WHILE_RUNNING,
    "checkpoint",
    "code",
    "env",
    "hub",
    "image",
    "models.*.training.activationRecompute",
    "models.*.training.distributedOptimizer",
    "models.*.training.engine",
    "models.*.training.learningRate",
    "models.*.training.microBatchTokens",
    "models.*.training.offload",
    "models.*.training.parallelism",
    "placement",
    "priorityClassName",
    "resources",
    "rewards.*.model.microBatchTokens",
    "rollout.expectedPromptTokens",
    "rollout.expectedResponseTokens",
    "rollout.kvCacheMemory",
    "rollout.maxConcurrentSequences",
    "rollout.parallelism",
    "rollout.stageFusion",
    "rollout.stageFusionThreshold",
    "schedule.evaluateEverySteps",
    "schedule.steps",
    "telemetry",
)
"""Fields of spec that may also change while a job is suspended, or before it is resumed.

What is saved does not depend on them: workers are built anew from the manifest, and only then take
the weights, moments and counters of a checkpoint. How much is computed at once, on how many
devices, and by which engine, changes the order of sums and nothing else; under another stage fusion
some responses go on with other random numbers.
"""


Path = tuple[str | int, ...]
"""Names of fields, and numbers of entries of lists."""

NOT_IN_DIGEST = ("managedBy", *MUTABLE_WHILE_RUNNING)
"""Fields of spec that a running cluster and driver do not go by."""


def manifest_digest(spec: RLHFJobSpec, *, with_shapes: bool = False) -> str:
    """A digest of all that a job's running cluster and driver go by: another one means that what
    runs is not what the manifest says. What is filled in later changes nothing of it.

    Values at their defaults are left out: a release with more fields must not take every running
    job for a changed one. So are cuts into one part, which were defaults once and stand in stored
    jobs.

    Args:
        spec: of the job.
        with_shapes: as earlier releases made it, for which another shape was another manifest.
    """
    document = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for given in (*document.get("models", {}).values(), *document.get("rewards", [])):
        _without_single_parts(given)
    shapes = [pattern for pattern in FILLED_FIELDS if pattern.endswith(".shape")]
    for pattern in set(NOT_IN_DIGEST).difference(shapes if with_shapes else ()):
        _remove(document, pattern.split("."))
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _remove(node: Any, path: Sequence[str]) -> None:
    """Leave out of a document what a path leads to, `*` in it standing for every name or entry."""
    name, *rest = path
    if name == "*":
        for each in node.values() if isinstance(node, dict) else node:
            _remove(each, rest)
    elif not rest:
        node.pop(name, None)
    elif name in node:
        _remove(node[name], rest)


def _without_single_parts(given: dict[str, Any]) -> None:
    """Leave out of what says how a model is trained that layers are cut into one part."""
    for name in ("training", "model"):
        trained = given.get(name, {})
        cut = trained.get("parallelism", {})
        for size in ("tensor", "pipeline"):
            if cut.get(size) == 1:
                del cut[size]
        if not cut:
            trained.pop("parallelism", None)
        if not trained and name == "training":
            given.pop(name, None)


def spec_document(spec: RLHFJobSpec) -> dict[str, Any]:
    """A spec with defaults, by wire names: what is kept of it and compared."""
    return spec.model_dump(mode="json", by_alias=True)


def refused_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], allowed: Sequence[str] = MUTABLE_ON_RESUME
) -> list[Problem]:
    """Every field that differs between two specs and may not.

    Args:
        old: the document of the spec in force.
        new: the one that is to follow it.
        allowed: fields that may differ; with a field everything below it, `*` for any one name or
            entry of a list.
    """
    return [
        Problem(
            ("spec", *path),
            "this field cannot change when a job goes on",
            got=format_value(after),
            allowed=format_value(before),
            do="change it back, or start over (rlhf run: --fresh)",
        )
        for path, before, after in differences(old, new)
        if not any(_covers(pattern.split("."), path) for pattern in allowed)
    ]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[Path, Any, Any]]:
    """Every field that differs between two specs: its path, and both values; None: left out."""
    return _differences((), old, new)


def _differences(path: Path, old: Any, new: Any) -> Iterator[tuple[Path, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from _differences((*path, name), old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences((*path, index), before, after)
    elif old != new:
        yield path, old, new


def _covers(pattern: Sequence[str], path: Path) -> bool:
    if len(path) < len(pattern):
        return False
    return all(fnmatchcase(str(name), part) for name, part in zip(path, pattern, strict=False))
