"""Graphs as somebody may have written them who did not trace them."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from rlhf_api.plan import GraphName
from rlhf_flow.document.graph_document import write_graph
from rlhf_flow.jobs.job_graphs import trace_job

from .conftest import make_job

Document = dict[str, Any]


def ppo() -> Document:
    """The graph of PPO's step: generate, score, values, compute, critic.train, actor.train."""
    graph = trace_job(make_job(algorithm={"type": "PPO"}))[GraphName.STEP]
    written = write_graph(graph, code_digest="0" * 16, settings_digest="0" * 16)
    document: Document = written.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return document


PPO = ppo()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where everything in a document is."""
    members = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else members:
        yield (*path, key)
        yield from places(each, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def broken(chance: random.Random) -> Document:
    """PPO's graph with one to three parts removed, doubled, put elsewhere, or of another size."""
    document = copy.deepcopy(PPO)
    for _ in range(chance.randint(1, 3)):
        known = list(places(document))
        *around, key = chance.choice(known)
        parent = at(document, tuple(around))
        value, how = parent[key], chance.randint(0, 4)
        if how == 0:
            del parent[key]
        elif how == 1 and isinstance(parent, list):
            parent.insert(chance.randint(0, len(parent)), copy.deepcopy(value))
        elif how == 2 and isinstance(parent, list):
            chance.shuffle(parent)
        elif isinstance(value, int | float):
            parent[key] = chance.choice([0, 1, 2, 7, -1, 0.5, 10**6, 2**31])
        else:
            same = [each for each in known if type(at(document, each)) is type(value)]
            parent[key] = copy.deepcopy(at(document, chance.choice(same)))
    return document
