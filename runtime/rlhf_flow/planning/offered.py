"""What a step asks for and this version does not have."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import GraphName
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import NotOffered
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles


def check_offered(graphs: Mapping[GraphName, Graph], device: Device) -> None:
    """Refuse steps that no runtime runs yet.

    Args:
        graphs: of the job.
        device: what ranks compute on.

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
    generating = [name for name, role in job_roles(graphs).items() if role.generates]
    if device is Device.GPU and len(generating) > 1:
        raise NotOffered(
            "several roles that generate are not offered on GPUs yet, where an engine that gives "
            f"its memory back is alone in its process: got {', '.join(generating)}, allowed one; "
            "generate with one of them"
        )
