"""What a step asks for and this version does not have."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import GraphName
from rlhf_flow.errors import NotOffered
from rlhf_flow.graph import Graph


def check_offered(graphs: Mapping[GraphName, Graph]) -> None:
    """Refuse steps that no runtime runs yet.

    Raises:
        NotOffered: with the call, and what to write instead.
    """
    for region in (region for graph in graphs.values() for region in graph.regions):
        if region.kind == "repeat":
            raise NotOffered(
                f"collecting rows over several rounds is not offered yet: got flow.repeat "
                f"({region.id}), allowed a fixed number of calls; sample more prompts per step "
                "instead"
            )
