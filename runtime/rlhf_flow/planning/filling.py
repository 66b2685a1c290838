"""What a manifest lacks to be planned without its code and models: what `rlhf fill` writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.plan import GraphName
from rlhf_api.problems import FieldPath
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import ModelShape
from rlhf_flow.document.manifest_graph import FIELD, build_manifest_graph
from rlhf_flow.errors import ShapeUnknown
from rlhf_flow.jobs.job_graphs import trace_algorithms
from rlhf_flow.planning.known_models import KNOWN_MODELS
from rlhf_flow.planning.resolve_shape import difference_of, source_shape


@dataclass(frozen=True)
class Filling:
    """A field of a manifest, and what it should say."""

    path: FieldPath
    """Of the field."""
    value: Any
    """Plain values under wire names."""
    about: str
    """What it is, in a few words."""


def shapes_to_fill(job: RLHFJob, cache: Path) -> Iterator[Filling]:
    """The shapes that a manifest lacks, or that are not those of its models.

    Args:
        job: the manifest, with paths as they are seen here.
        cache: the hub cache of this machine.

    Raises:
        ShapeUnknown: a model that nothing here knows, and whose shape the manifest does not give.
    """
    for role, given in job.spec.given_models.items():
        shape, source = given.model.shape, given.model.source
        is_known = source.path is None and (
            source.hugging_face is None or source.hugging_face in KNOWN_MODELS
        )
        if shape is None and is_known:
            continue
        try:
            found = source_shape(job, role, cache).to_spec()
        except ShapeUnknown as error:
            if shape is not None:
                continue
            raise error.at("spec", *given.location) from error.__cause__
        if shape is None or difference_of(shape, found) is not None:
            yield Filling(("spec", *given.location, "shape"), _plain(found), _about(found))


def graph_to_fill(job: RLHFJob) -> Iterator[Filling]:
    """The graph of a custom algorithm's step, traced by its code.

    Args:
        job: the manifest, without the graph that it has.

    Raises:
        FlowError: a step that cannot be traced, or that cannot work.
        InvalidGraph: one that a manifest cannot hold.
        ManifestError: rewards that do not fit its roles.
    """
    if job.spec.algorithm.type is not AlgorithmType.CUSTOM:
        return
    step = trace_algorithms(job)[GraphName.STEP]
    graph = build_manifest_graph(job, step.algorithm, step.graph)
    calls, roles = (
        f"{len(each)} {noun}{'' if len(each) == 1 else 's'}"
        for each, noun in ((graph.calls, "call"), (graph.roles, "role"))
    )
    yield Filling(FIELD, _plain(graph), f"{calls} of {roles}")


def _plain(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _about(shape: ModelShape) -> str:
    family = "" if shape.family is None else f"{shape.family.value}, "
    return f"{family}{shape.num_layers} layers of {shape.hidden_size}"
