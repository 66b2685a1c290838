"""The graph that a manifest gives for its custom algorithm: whether it is up to date.

The operator runs no user's code: it can tell what of the manifest a graph was traced with. Whoever
has the code compares the graph itself.
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
from rlhf_flow.document.graph_document import read_graph, write_graph
from rlhf_flow.errors import InvalidGraph, ManifestOutdated
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.columns import ANSWER_FIELDS, PAIR_FIELDS, PROMPT_FIELDS
from rlhf_flow.step.reward_terms import reward_terms
from rlhf_flow.trace.graph import Graph, RowCount

FIELD = ("spec", "algorithm", "graph")
DIGEST_LENGTH = 16


def data_fields(job: RLHFJob) -> frozenset[str]:
    """Fields that a step can read: those of the data's form."""
    data = job.spec.data.train
    if data.preferences is not None:
        return PAIR_FIELDS
    has_answers = data.answer_field is not None or data.builtin is not None
    return ANSWER_FIELDS if has_answers else PROMPT_FIELDS


def pretraining_rows(job: RLHFJob) -> RowCount | None:
    """Rows of data.pretraining for each of a step's prompts; None: there are none."""
    rows = job.spec.pretraining_rows_per_step
    if rows is None:
        return None
    prompts = job.spec.schedule.prompts_per_step
    return RowCount(rows / prompts, -(-rows // prompts))


def settings_digest(job: RLHFJob) -> str:
    """A digest of all in a manifest that a custom algorithm's graph follows from, beside its code.

    Whole numbers are the same with and without a point: Kubernetes stores 1.0 as 1.
    """
    settings = job.spec.algorithm.settings
    assert isinstance(settings, CustomSettings), "other algorithms' graphs are known"
    rows = pretraining_rows(job)
    traced_with = {
        "entrypoint": settings.entrypoint,
        "parameters": settings.parameters,
        "samples": job.spec.rollout.samples_per_prompt,
        "fields": sorted(data_fields(job)),
        "pretraining": None if rows is None else asdict(rows),
        "rewards": {name: asdict(each) for name, each in reward_terms(job.spec.rewards).items()},
    }
    return _digest(json.dumps(_with_whole_numbers(traced_with), sort_keys=True).encode())


def code_digest(algorithm: Algorithm) -> str:
    """A digest of the files of an algorithm's class and of those that it derives from."""
    files: dict[str, bytes] = {}
    for kind in type(algorithm).__mro__:
        name = kind.__module__
        if name in ("builtins", "abc") or name.partition(".")[0] == "rlhf_flow":
            continue
        source = Path(getattr(sys.modules.get(name), "__file__", None) or "")
        files[name] = source.read_bytes() if source.is_file() else b""
    return _digest(b"\0".join(name.encode() + b"\0" + files[name] for name in sorted(files)))


def document_of_graph(job: RLHFJob, algorithm: Algorithm, graph: Graph) -> AlgorithmGraph:
    """What a manifest should say of its algorithm's graph.

    Raises:
        InvalidGraph: a graph that a manifest cannot hold.
    """
    code, settings = code_digest(algorithm), settings_digest(job)
    try:
        return write_graph(graph, code_digest=code, settings_digest=settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = path_text(first["loc"])
        raise InvalidGraph(
            f"a graph that a manifest cannot hold: got {len(graph.calls)} calls, of which {place}: "
            f"{first['msg']}; allowed at most {MAX_CALLS} calls; without it the driver plans first"
        ).at(*FIELD) from error


def check_up_to_date(job: RLHFJob, algorithm: Algorithm, graph: Graph) -> None:
    """Compare the manifest's graph, where it has one, with the one that its code gives.

    Args:
        job: the manifest.
        algorithm: its own one.
        graph: of its step, traced.

    Raises:
        InvalidGraph: the manifest's cannot be one.
        ManifestOutdated: it is another one.
    """
    given = job.spec.algorithm.graph
    if given is None:
        return
    read = write_graph(
        read_graph(given), code_digest=given.code_digest, settings_digest=given.settings_digest
    )
    traced = document_of_graph(job, algorithm, graph)
    digests = {"code_digest", "settings_digest"}
    written, expected = (
        each.model_dump(mode="json", by_alias=True, exclude=digests) for each in (read, traced)
    )
    difference = next(differences(written, expected), None)
    if difference is None:
        return
    path, before, now = difference
    field = path_text(path)
    causes = [
        text
        for is_it, text in (
            (given.code_digest != traced.code_digest, "its code has changed since"),
            (
                given.settings_digest != traced.settings_digest,
                "the manifest's settings that it depends on have changed since",
            ),
        )
        if is_it
    ]
    cause = f" ({' and '.join(causes)})" if causes else ""
    settings = job.spec.algorithm.settings
    assert isinstance(settings, CustomSettings)
    raise ManifestOutdated(
        f"the manifest's graph is not that of {settings.entrypoint}{cause}: got {field} "
        f"{_shown(before)}, allowed {_shown(now)}, as the code says; run `rlhf fill FILE`, which "
        "brings it up to date, or remove spec.algorithm.graph"
    ).at(*FIELD)


def is_of_these_settings(job: RLHFJob) -> bool:
    """Whether the manifest's graph was traced with what the manifest says now."""
    given = job.spec.algorithm.graph
    return given is not None and given.settings_digest == settings_digest(job)


def lacks_code(job: RLHFJob) -> bool:
    """Whether a custom algorithm's module is not on the Python path, and the manifest's graph can
    stand for it: one that was traced with these settings."""
    settings = job.spec.algorithm.settings
    if not isinstance(settings, CustomSettings) or not is_of_these_settings(job):
        return False
    package = settings.entrypoint.partition(":")[0].partition(".")[0]
    return package not in sys.modules and find_spec(package) is None


def graph_of_manifest(job: RLHFJob) -> Graph:
    """The graph that a manifest gives for its own algorithm, checked.

    Raises:
        InvalidGraph: it cannot be one, or reads data that the job does not have.
    """
    given = job.spec.algorithm.graph
    assert given is not None, "who asks has looked"
    graph = read_graph(given)
    lacking = sorted(set(graph.inputs.prompts) - data_fields(job))
    if graph.inputs.pretraining and pretraining_rows(job) is None:
        lacking += ["data.pretraining"]
    if lacking:
        raise InvalidGraph(
            f"the manifest's graph reads what the job's data do not have: got {', '.join(lacking)}"
            f", allowed {', '.join(sorted(data_fields(job)))}; run `rlhf fill FILE`"
        ).at(*FIELD)
    return graph


def _shown(value: object) -> str:
    """A part of a graph, shortened: of calls and roles their names."""
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        value = [each.get("id") or each.get("name") or each for each in value]
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _with_whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(each) for each in value]
    return value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]
