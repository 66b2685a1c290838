"""The graph of a custom algorithm in its manifest, and the checks that it is up to date.

The operator runs no user's code: it compares a digest of the settings with which the graph was
traced. The driver has the code, traces it and compares the graphs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf_api.changes import differences
from rlhf_api.problems import path_text
from rlhf_api.spec.algorithm import CustomSettings
from rlhf_api.spec.algorithm_graph import MAX_CALLS, AlgorithmGraph
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.stopping import StopAction
from rlhf_flow.document.graph_document import read_graph, write_graph
from rlhf_flow.errors import InvalidGraph, ManifestOutdated
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.columns import ANSWER_COLUMNS, PAIR_COLUMNS, PROMPT_COLUMNS, RESPONSE_MASK
from rlhf_flow.step.reward_terms import reward_terms
from rlhf_flow.trace.graph import Graph, RowCount

FIELD = ("spec", "algorithm", "graph")
DIGEST_LENGTH = 16


def data_columns(job: RLHFJob) -> frozenset[str]:
    """Columns of data.train that a step can read."""
    data = job.spec.data.train
    if data.preferences is not None:
        return PAIR_COLUMNS | mask_columns(job)
    return answer_columns(job) if data.has_answers else PROMPT_COLUMNS


def answer_columns(job: RLHFJob) -> frozenset[str]:
    """Columns of data.train that a warm start can read."""
    return ANSWER_COLUMNS | mask_columns(job)


def mask_columns(job: RLHFJob) -> frozenset[str]:
    """The response mask, if data.train has answers with context between them."""
    return frozenset({RESPONSE_MASK} if job.spec.data.train.trains_all_answers else ())


def pretraining_rows(job: RLHFJob) -> RowCount | None:
    """Rows of data.pretraining per prompt of a step. None: the job has none."""
    rows = job.spec.pretraining_rows_per_step
    if rows is None:
        return None
    prompts = job.spec.schedule.prompts_per_step
    # The maximum is rounded up: it decides on memory.
    return RowCount(rows / prompts, -(-rows // prompts))


def settings_digest(job: RLHFJob) -> str:
    """A digest of all settings of a manifest on which a custom algorithm's graph depends."""
    settings = job.spec.algorithm.settings
    assert isinstance(settings, CustomSettings), "other algorithms' graphs are known"
    rows = pretraining_rows(job)
    # The keys are part of stored digests.
    traced_with = {
        "entrypoint": settings.entrypoint,
        "parameters": settings.parameters,
        "samples": job.spec.rollout.samples_per_prompt,
        "fields": sorted(data_columns(job)),
        "pretraining": None if rows is None else {"expected": rows.expected, "most": rows.maximum},
        "rewards": {name: asdict(terms) for name, terms in reward_terms(job.spec.rewards).items()},
    }
    on_stop = job.spec.rollout.stop_actions
    # The graph depends on the actions, not on the stop reasons that they are for.
    if used := [a.value for a in (StopAction.MASK, StopAction.LEAVE_OUT) if on_stop.has(a)]:
        traced_with["onStop"] = used
    if job.spec.rollout.truncation.is_active:
        traced_with["truncatesSampling"] = True
    if job.spec.rollout.environment is not None:
        traced_with["hasConversations"] = True
    return _digest(json.dumps(_with_integers(traced_with), sort_keys=True).encode())


def code_digest(algorithm: Algorithm) -> str:
    """A digest of the source files of an algorithm's class and its base classes."""
    files: dict[str, bytes] = {}
    for kind in type(algorithm).__mro__:
        name = kind.__module__
        # A release of this package is no change of the user's code.
        if name in ("builtins", "abc") or name.partition(".")[0] == "rlhf_flow":
            continue
        source = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        files[name] = source.read_bytes() if source.is_file() else b""
    # Names and contents are separated by NUL, which no source contains.
    return _digest(b"\0".join(name.encode() + b"\0" + files[name] for name in sorted(files)))


def build_manifest_graph(job: RLHFJob, algorithm: Algorithm, graph: Graph) -> AlgorithmGraph:
    """The graph of an algorithm as its manifest should contain it.

    Raises:
        InvalidGraph: a graph that a manifest cannot hold.
    """
    code, settings = code_digest(algorithm), settings_digest(job)
    try:
        return write_graph(graph, code_digest=code, settings_digest=settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = path_text(first["loc"])
        raise InvalidGraph(
            f"a graph that a manifest cannot hold: got {len(graph.calls)} calls, of which {path}: "
            f"{first['msg']}; allowed at most {MAX_CALLS} calls; without it the driver plans first"
        ).at(*FIELD) from error


def check_up_to_date(job: RLHFJob, algorithm: Algorithm, graph: Graph) -> None:
    """Compare the manifest's graph, if it has one, with the traced one.

    Args:
        job: the manifest.
        algorithm: of the manifest.
        graph: of its step, traced.

    Raises:
        InvalidGraph: the manifest's graph is malformed.
        ManifestOutdated: the graphs differ.
    """
    stored = job.spec.algorithm.graph
    if stored is None:
        return
    # Reading and writing gives the stored graph the same form as the traced one.
    read = write_graph(
        read_graph(stored), code_digest=stored.code_digest, settings_digest=stored.settings_digest
    )
    traced = build_manifest_graph(job, algorithm, graph)
    # Changed code with the same graph, such as a comment, is up to date: digests only name causes.
    digests = {"code_digest", "settings_digest"}
    written, expected = (
        graph_.model_dump(mode="json", by_alias=True, exclude=digests) for graph_ in (read, traced)
    )
    difference = next(differences(written, expected), None)
    if difference is None:
        return
    path, stored_value, traced_value = difference
    field = path_text(path)
    causes = [
        text
        for is_changed, text in (
            (stored.code_digest != traced.code_digest, "its code has changed since"),
            (
                stored.settings_digest != traced.settings_digest,
                "the manifest's settings that it depends on have changed since",
            ),
        )
        if is_changed
    ]
    cause = f" ({' and '.join(causes)})" if causes else ""
    settings = job.spec.algorithm.settings
    assert isinstance(settings, CustomSettings)
    raise ManifestOutdated(
        f"the manifest's graph is not that of {settings.entrypoint}{cause}: got {field} "
        f"{_shown(stored_value)}, allowed {_shown(traced_value)}, as the code says; run `rlhf fill "
        "FILE`, which brings it up to date, or remove spec.algorithm.graph"
    ).at(*FIELD)


def matches_settings(job: RLHFJob) -> bool:
    """True if the manifest's graph was traced with the manifest's settings."""
    stored = job.spec.algorithm.graph
    return stored is not None and stored.settings_digest == settings_digest(job)


def lacks_code(job: RLHFJob) -> bool:
    """True if a custom algorithm cannot be imported, but its manifest has an up-to-date graph."""
    settings = job.spec.algorithm.settings
    if not isinstance(settings, CustomSettings) or not matches_settings(job):
        return False
    # find_spec of a submodule would import its package, so only the top package is looked up.
    package = settings.entrypoint.partition(":")[0].partition(".")[0]
    return package not in sys.modules and find_spec(package) is None


def read_manifest_graph(job: RLHFJob) -> Graph:
    """Read and check the graph of a manifest.

    Raises:
        InvalidGraph: it is malformed, or reads data that the job does not have.
    """
    stored = job.spec.algorithm.graph
    assert stored is not None, "the caller checks this"
    graph = read_graph(stored)
    lacking = sorted(set(graph.inputs.prompts) - data_columns(job))
    if graph.inputs.pretraining and pretraining_rows(job) is None:
        lacking += ["data.pretraining"]
    if lacking:
        raise InvalidGraph(
            f"the manifest's graph reads what the job's data do not have: got {', '.join(lacking)}"
            f", allowed {', '.join(sorted(data_columns(job)))}; run `rlhf fill FILE`"
        ).at(*FIELD)
    return graph


def _shown(value: object) -> str:
    """Shorten a part of a graph for a message: calls and roles become their names."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        value = [item.get("id") or item.get("name") or item for item in value]
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _with_integers(value: Any) -> Any:
    # Kubernetes stores 1.0 as 1, which must not change a digest.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _with_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_integers(item) for item in value]
    return value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]
