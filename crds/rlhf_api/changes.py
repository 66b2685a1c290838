"""The list of fields of a job that may change, and when. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from rlhf_api.problems import Problem
from rlhf_api.reading.model_errors import format_value
from rlhf_api.spec.job import RLHFJobSpec

# Fields that describe the user's code and models, so that a job can be planned without them. `rlhf
# fill` writes them. A process that has the code and models compares them and refuses a manifest
# that differs.
FILLED_FIELDS = ("algorithm.graph", "models.*.shape", "rewards.*.model.shape")

# Fields of spec that may change at any time.
MUTABLE_WHILE_RUNNING = (
    *FILLED_FIELDS,
    # Only read when a job finds another one's run in its folder.
    "checkpoint.start",
    "suspend",
    "clusterTTLSeconds",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "startDeadlineSeconds",
    "failurePolicy",
)

# Fields of spec that may also change while a job is suspended or about to be resumed.
# A checkpoint does not depend on these fields: workers are created from the new manifest and then
# load weights, moments and counters. Batching, device counts and engines change only the order of
# sums. Another stage fusion continues some responses with other random numbers.
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
    "rollout.expectedTruncated",
    "rollout.kvCacheMemory",
    "rollout.maxConcurrentSequences",
    "rollout.parallelism",
    "rollout.stageFusion",
    "rollout.stageFusionThreshold",
    "schedule.earlyStop",
    "schedule.evaluateEverySteps",
    "schedule.steps",
    "telemetry",
)


# Field names and list indices.
Path = tuple[str | int, ...]

# Fields of spec that do not affect a running cluster and driver.
NOT_IN_DIGEST = ("managedBy", *MUTABLE_WHILE_RUNNING)


def manifest_digest(spec: RLHFJobSpec, *, with_shapes: bool = False) -> str:
    """Digest of the manifest fields that a running cluster and driver depend on.

    A changed digest means that the running job no longer matches its manifest. Fields of
    FILLED_FIELDS do not count.

    Args:
        spec: of the job.
        with_shapes: include the shapes of models, as earlier releases did.
    """
    # Without defaults: a release with more fields must not see a change in every running job.
    document = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for entry in (*document.get("models", {}).values(), *document.get("rewards", [])):
        _remove_single_parts(entry)
    shapes = [pattern for pattern in FILLED_FIELDS if pattern.endswith(".shape")]
    for pattern in set(NOT_IN_DIGEST).difference(shapes if with_shapes else ()):
        _remove(document, pattern.split("."))
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _remove(node: Any, path: Sequence[str]) -> None:
    """Remove the value at a path; `*` stands for every name or index."""
    name, *rest = path
    if name == "*":
        for child in node.values() if isinstance(node, dict) else node:
            _remove(child, rest)
    elif not rest:
        node.pop(name, None)
    elif name in node:
        _remove(node[name], rest)


def _remove_single_parts(entry: dict[str, Any]) -> None:
    """Remove tensor and pipeline sizes of 1, and objects that are empty then."""
    # 1 was the default in earlier releases, whose digests left it out. Jobs in which it is stored
    # must keep their digests.
    for name in ("training", "model"):
        training = entry.get(name, {})
        parallelism = training.get("parallelism", {})
        for size in ("tensor", "pipeline"):
            if parallelism.get(size) == 1:
                del parallelism[size]
        if not parallelism:
            training.pop("parallelism", None)
        # A reward's `model` stays: it names its source.
        if not training and name == "training":
            entry.pop(name, None)


def spec_document(spec: RLHFJobSpec) -> dict[str, Any]:
    """A spec with its defaults, under wire names. This form is stored and compared."""
    return spec.model_dump(mode="json", by_alias=True)


def with_new_defaults(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the fields that a stored document lacks because its release did not have them.

    Returns:
        The document unchanged if it is not valid in this release.
    """
    try:
        return spec_document(RLHFJobSpec.model_validate(document))
    except ValidationError:
        return document


def refused_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], allowed: Sequence[str] = MUTABLE_ON_RESUME
) -> list[Problem]:
    """List the forbidden changes between two specs.

    Args:
        old: document of the spec in force.
        new: document of its successor.
        allowed: fields that may differ, with everything below them; `*` stands for any one name or
            index.
    """
    return [
        Problem(
            ("spec", *path),
            "this field cannot change when a job goes on",
            got=format_value(after),
            allowed=format_value(before),
            do="change it back, or start over",
        )
        for path, before, after in differences(old, new)
        if not any(_covers(pattern.split("."), path) for pattern in allowed)
    ]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[Path, Any, Any]]:
    """Yield every field that differs: path, old value, new value. None: the field is absent."""
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
