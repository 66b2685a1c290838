"""The scenarios of test_megatron, by name: which functions of megatron_ranks run, on which meshes.

Apart from those, whose libraries take seconds to import: tests are collected without them.
"""

from __future__ import annotations

from typing import Any

from rlhf_api.mesh import Mesh

from .megatron_models import CONFIGS, PLAIN, TIED, WIDE

Case = tuple[str, dict[str, Any]]
"""A function's name and its options."""
SCHEDULES = "stages_compute_as_megatrons_schedule"


def mesh_of(data: int, pipeline: int, tensor: int) -> Mesh:
    return Mesh(pool="pool", data=data, pipeline=pipeline, tensor=tensor)


ONE = mesh_of(1, 1, 1)
TWO_TENSOR, TWO_STAGES, TWO_REPLICAS = mesh_of(1, 1, 2), mesh_of(1, 2, 1), mesh_of(2, 1, 1)
STAGES_OF_TENSOR, REPLICAS_OF_TENSOR = mesh_of(1, 2, 2), mesh_of(2, 1, 2)
FOUR_STAGES = mesh_of(1, 4, 1)
MESHES: dict[int, dict[str, tuple[Mesh, tuple[str, ...]]]] = {
    1: {"one rank": (ONE, tuple(CONFIGS))},
    2: {
        "two tensor ranks": (TWO_TENSOR, tuple(CONFIGS)),
        "two stages": (TWO_STAGES, tuple(CONFIGS)),
        "two replicas": (TWO_REPLICAS, (PLAIN,)),
    },
    4: {
        "two stages of two tensor ranks": (STAGES_OF_TENSOR, tuple(CONFIGS)),
        "two replicas of two tensor ranks": (REPLICAS_OF_TENSOR, (WIDE,)),
        "four stages": (FOUR_STAGES, (WIDE,)),
    },
}
"""By ranks of the world: each mesh and its models."""

OTHERS: dict[int, dict[str, Case]] = {
    1: {
        "torch stays as it was": ("torch_stays_as_it_was", {}),
        "stages are on the device that they compute on": (
            "stages_are_on_the_device_that_they_compute_on",
            {},
        ),
        "one stage computes as Megatron's": (SCHEDULES, {"mesh": ONE, "kind": PLAIN}),
    },
    2: {
        "positions and masks are those given": ("positions_and_masks_are_those_given", {}),
        "roles with different meshes share a process": (
            "roles_with_different_meshes_share_a_process",
            {},
        ),
        "weights go from one mesh to another": ("weights_go_from_one_mesh_to_another", {}),
        "tensor ranks know what they share": ("tensor_ranks_know_what_they_share", {}),
        "two stages compute as Megatron's schedule": (
            SCHEDULES,
            {"mesh": TWO_STAGES, "kind": PLAIN},
        ),
        "models take turns on their stages": (
            "models_take_turns_on_their_stages",
            {"mesh": TWO_STAGES, "kind": PLAIN},
        ),
        **{
            f"copies stay alike (sequence parallelism: {shared})": (
                "copies_stay_alike",
                {"mesh": TWO_TENSOR, "sequence_parallel": shared, "distributed": False},
            )
            for shared in (False, True)
        },
        **{
            f"frozen models compute the same (sequence parallelism: {shared})": (
                "frozen_models_compute_the_same",
                {"sequence_parallel": shared},
            )
            for shared in (False, True)
        },
        **{
            f"half precision computes alike ({name})": (
                "half_precision_computes_alike",
                {"mesh": mesh},
            )
            for name, mesh in {"two tensor ranks": TWO_TENSOR, "two stages": TWO_STAGES}.items()
        },
    },
    4: {
        "copies of replicas that share stay alike": (
            "copies_stay_alike",
            {"mesh": REPLICAS_OF_TENSOR, "sequence_parallel": False, "distributed": True},
        ),
        "four stages compute as Megatron's schedule": (
            SCHEDULES,
            {"mesh": FOUR_STAGES, "kind": WIDE},
        ),
        **{
            f"outputs are freed once sent (recomputation: {recompute})": (
                "outputs_are_freed_once_sent",
                {"mesh": FOUR_STAGES, "kind": WIDE, "recompute": recompute},
            )
            for recompute in (False, True)
        },
        **{
            f"stages of tensor ranks compute as Megatron's (sequence parallelism: {shared})": (
                SCHEDULES,
                {"mesh": STAGES_OF_TENSOR, "kind": PLAIN, "sequence_parallel": shared},
            )
            for shared in (False, True)
        },
    },
}


def cases(size: int) -> dict[str, Case]:
    """Those of a world of so many ranks."""
    found = dict(OTHERS[size])
    for name, (mesh, kinds) in MESHES[size].items():
        for kind in kinds:
            options, where = {"mesh": mesh, "kind": kind}, f"({kind}; {name})"
            check = "outputs_and_gradients_equal_hugging_faces"
            found[f"outputs and gradients equal Hugging Face's {where}"] = check, options
            if mesh.tensor > 1 and (size == 2 or kind in (PLAIN, WIDE)):
                found[f"tensor ranks share sequences {where}"] = (
                    check,
                    {**options, "sequence_parallel": True},
                )
            if mesh.tensor > 1 and mesh.data == 1 and kind == WIDE:
                for shared in (False, True):
                    found[
                        f"losses of log-probabilities {where}, sequence parallelism: {shared}"
                    ] = (
                        "losses_of_log_probs_equal_hugging_faces",
                        {"mesh": mesh, "sequence_parallel": shared},
                    )
            if kind in (TIED, "qwen2", WIDE) or mesh.data > 1:
                found[f"ranks hold every weight {where}"] = "ranks_hold_every_weight", options
                found[f"models are saved as they were {where}"] = (
                    "models_are_saved_as_they_were",
                    options,
                )
    return found
