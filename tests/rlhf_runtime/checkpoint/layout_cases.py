"""The layouts of test_layouts and its scenarios by name: which functions of layout_ranks run.

Apart from those, whose libraries take seconds to import: tests are collected without them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rlhf_api.mesh import Mesh


class Layout(NamedTuple):
    """How ranks share a model."""

    mesh: Mesh
    kind: str
    """FSDP2's, or a stage of Megatron's with a plain or a distributed optimizer."""


FSDP, PLAIN, DISTRIBUTED = "FSDP2", "plain", "distributed"


def mesh_of(data: int, pipeline: int = 1, tensor: int = 1, first_rank: int = 0) -> Mesh:
    return Mesh(pool="pool", first_rank=first_rank, data=data, pipeline=pipeline, tensor=tensor)


LAYOUTS = {
    "FSDP2 on one rank": Layout(mesh_of(1, first_rank=3), FSDP),
    "FSDP2 on two ranks": Layout(mesh_of(2, first_rank=1), FSDP),
    "FSDP2 on three ranks": Layout(mesh_of(3), FSDP),
    "FSDP2 on four ranks": Layout(mesh_of(4), FSDP),
    "two stages of two tensor ranks": Layout(mesh_of(1, 2, 2), PLAIN),
    "four tensor ranks": Layout(mesh_of(1, 1, 4), PLAIN),
    "two replicas of two tensor ranks": Layout(mesh_of(2, 1, 2), PLAIN),
    "two replicas of two tensor ranks, distributed": Layout(mesh_of(2, 1, 2), DISTRIBUTED),
    "two replicas of two stages, distributed": Layout(mesh_of(2, 2, 1), DISTRIBUTED),
    "four replicas, distributed": Layout(mesh_of(4), DISTRIBUTED),
}

SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"saved as {name}": ("a_checkpoint_is_that_of_any_layout", {"saved": name})
        for name in LAYOUTS
    },
    **{
        name.replace("_", " "): (name, {})
        for name in (
            "boxes_that_overlap_partially_are_refused",
            "a_region_that_nobody_holds_is_told",
            "what_another_rank_saves_is_left_to_it",
        )
    },
}
"""A function's name and its options."""
