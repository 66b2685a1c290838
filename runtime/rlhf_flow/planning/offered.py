"""What a manifest or a step asks for and this version does not have."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api import RLHFJob
from rlhf_api.plan import GraphName
from rlhf_flow.errors import NotOffered
from rlhf_flow.graph import Graph


def check_offered(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> None:
    """Refuse kinds of parallelism that no engine has yet, and steps that no runtime runs yet.

    Raises:
        NotOffered: with the field or the call, and what to write instead.
    """
    for region in (region for graph in graphs.values() for region in graph.regions):
        if region.kind == "repeat":
            raise NotOffered(
                f"collecting rows over several rounds is not offered yet: got flow.repeat "
                f"({region.id}), allowed a fixed number of calls; sample more prompts per step "
                "instead"
            )
    for role, model in job.spec.models.items():
        for axis, degree in (
            ("tensor", model.parallelism.tensor),
            ("pipeline", model.parallelism.pipeline),
        ):
            if degree is not None and degree > 1:
                raise NotOffered(
                    f"the engine FSDP cuts a model over all devices by itself: got "
                    f"models.{role}.parallelism.{axis} {degree}, allowed 1; remove it"
                )
    pipeline = job.spec.rollout.parallelism.pipeline
    if pipeline is not None and pipeline > 1:
        raise NotOffered(
            f"generation over pipeline stages is not offered yet: got rollout.parallelism.pipeline "
            f"{pipeline}, allowed 1; use rollout.parallelism.tensor"
        )
