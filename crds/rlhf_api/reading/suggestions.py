"""Suggestions for keys that the contract does not have."""

from __future__ import annotations

from difflib import get_close_matches

from pydantic.alias_generators import to_camel

from rlhf_api.reading.fields import FieldDoc, all_fields, contract

_CLUSTER_WRITES = "the cluster writes this; remove it"

# Advice for keys that people expect, by the path at which they write them.
_ADVICE = {
    "spec.rollout.doSample": "write temperature; data.evaluation has its own, 0 for greedy answers",
    "spec.rollout.gpuMemoryUtilization": "the plan divides the memory; kvCacheMemory sets it",
    "spec.models.<name>.training.optimizer": "the optimizer is AdamW; its settings belong here",
    "spec.models.<name>.training.batchSize": "write schedule.miniBatchPrompts and promptsPerStep",
    "spec.schedule.epochs": "write steps; epochsPerBatch in the algorithm repeats a step's batch",
    "status": _CLUSTER_WRITES,
    "metadata.uid": _CLUSTER_WRITES,
    "metadata.resourceVersion": _CLUSTER_WRITES,
    "metadata.generation": _CLUSTER_WRITES,
    "metadata.creationTimestamp": _CLUSTER_WRITES,
    "metadata.managedFields": _CLUSTER_WRITES,
    "metadata.generateName": "a job's name is also its folder; write name",
}


def suggest(key: str, parent: FieldDoc) -> str:
    """Advise on a key that an object does not have; empty if there is no advice."""
    # People write snake_case or kebab-case, too; type names stay as they are.
    camel = to_camel(key.replace("-", "_")) if not key[:1].isupper() else key
    advice = _ADVICE.get(f"{parent.path}.{camel}" if parent.path else camel)
    if advice:
        return advice
    names = [field.name for field in parent.fields]
    if camel in names:
        return f"write {camel}"
    near = nearest(key, names)
    if near:
        return f"did you mean {near}?"
    elsewhere = paths_named(camel)
    if len(elsewhere) > 3:
        elsewhere = [path for path in elsewhere if path.count(".") == elsewhere[0].count(".")]
    return f"{camel} belongs at {' or '.join(elsewhere)}" if 0 < len(elsewhere) <= 3 else ""


def nearest(word: str, candidates: list[str]) -> str:
    """The candidate most similar to a word, ignoring case; empty if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[matches[0]] if matches else ""


def paths_named(name: str) -> list[str]:
    """The paths of all fields with this wire name, ignoring case; the outermost ones first."""
    fields = [field for field in all_fields(contract()) if field.name.lower() == name.lower()]
    return sorted((field.path for field in fields), key=lambda path: path.count("."))
