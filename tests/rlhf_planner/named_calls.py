"""Calls by their ids, for tests of what stands between them."""

from __future__ import annotations

from collections.abc import Iterable

from rlhf_api.calls import CallKind
from rlhf_flow.step.calls import CopyOptions, ModelCall

KINDS = {
    "generate": CallKind.GENERATE,
    "log_probs": CallKind.INFER,
    "train": CallKind.TRAIN,
    "score": CallKind.SCORE,
    "copy_weights_from": CallKind.COPY,
    "compute": CallKind.COMPUTE,
}


def calls(names: Iterable[str]) -> list[ModelCall]:
    """Whoever copies weights takes the actor's."""
    found = []
    for name in names:
        role, _, method = name.rpartition("/")[2].partition("#")[0].rpartition(".")
        options = CopyOptions("actor") if method == "copy_weights_from" else None
        call = ModelCall(name, role or None, method, KINDS[method], (), (), options=options)
        found.append(call)
    return found
