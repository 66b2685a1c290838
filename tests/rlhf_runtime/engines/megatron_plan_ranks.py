"""Scenarios of test_megatron_plans: what stages hold and keep, against what plans count.

Run as `python -m tests.rlhf_runtime.engines.megatron_plan_ranks RANK 2 FOLDER`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import PretrainedConfig

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.spec.models import Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.megatron import layer_token_bytes, masks_bytes, stage_parameters
from rlhf_planner.memory.role_model import RoleModel
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.parallel import make_contexts
from rlhf_runtime.engines.world import World
from rlhf_sizing.config import shape_from_config

from ..world_of_processes import Scenario, run_scenarios
from .megatron_cases import TWO_STAGES, TWO_TENSOR
from .megatron_models import CONFIGS, VOCABULARY

TOKENS = 64
"""Of the one sequence that is run."""


def planned(config: PretrainedConfig, mesh: Mesh, dtype: torch.dtype, shared: bool) -> RoleModel:
    """The role as a plan has it."""
    return RoleModel(
        role="actor",
        mesh=mesh,
        device=Device.CPU,
        head=ModelHead.LM,
        is_trained=True,
        generates=False,
        shape=shape_from_config(config.to_dict(), "the test", ""),
        precision=Precision(str(dtype).removeprefix("torch.")),
        micro_batch_tokens=TOKENS,
        peak_tokens=TOKENS,
        batch_tokens=TOKENS,
        longest_shared_tokens=0,
        is_saved=False,
        recompute=False,
        engine=TrainingEngineType.MEGATRON,
        sequence_parallel=shared,
        distributed_optimizer=True,
    )


def stages_hold_what_is_planned(world: World, folder: Path, kind: str, mesh: Mesh) -> None:
    config, parallel = CONFIGS[kind](), make_contexts([mesh], world)[mesh]
    held = sum(parameter.numel() for parameter in Stage(config, parallel).parameters())
    role = planned(config, mesh, torch.float32, False)
    assert held == stage_parameters(role, parallel.at.pipeline)


def layers_keep_what_is_planned(
    world: World, folder: Path, kind: str, dtype: torch.dtype, shared: bool
) -> None:
    role = planned(CONFIGS[kind](), TWO_TENSOR, dtype, shared)
    kept = partial(kept_by_a_layer, world, kind, dtype, shared)
    assert kept() == TOKENS * layer_token_bytes(role)
    masked = replace(role, longest_shared_tokens=TOKENS)
    of_masks = masks_bytes(masked, TOKENS) - masks_bytes(masked, 0)
    assert kept(torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()) - kept() == of_masks


def kept_by_a_layer(
    world: World, kind: str, dtype: torch.dtype, shared: bool, mask: torch.Tensor | None = None
) -> float:
    """Bytes that autograd saves for one layer more, without weights."""
    return (
        saved_bytes(world, kind, dtype, shared, mask, 4)
        - saved_bytes(world, kind, dtype, shared, mask, 2)
    ) / 2


def saved_bytes(
    world: World,
    kind: str,
    dtype: torch.dtype,
    shared: bool,
    mask: torch.Tensor | None,
    num_layers: int,
) -> int:
    """Bytes of the storages that autograd saves in a forward pass, without weights."""
    config, parallel = CONFIGS[kind](), make_contexts([TWO_TENSOR], world)[TWO_TENSOR]
    config.num_hidden_layers = num_layers
    stage = Stage(config, parallel, sequence_parallel=shared, dtype=dtype)
    for parameter in stage.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    weights = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage
        return tensor

    token_ids = torch.arange(TOKENS)[None] % VOCABULARY
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stage(token_ids, None, mask)
    return sum(storage.nbytes() for storage in saved.values())


SCENARIOS: dict[str, Scenario] = {
    **{
        f"stages hold what is planned ({kind}; {name})": partial(
            stages_hold_what_is_planned, kind=kind, mesh=mesh
        )
        for kind in CONFIGS
        for name, mesh in {"tensor ranks": TWO_TENSOR, "stages": TWO_STAGES}.items()
    },
    **{
        f"layers keep what is planned ({kind}, {dtype}, sequence parallelism: {shared})": partial(
            layers_keep_what_is_planned, kind=kind, dtype=dtype, shared=shared
        )
        for kind in ("llama", "qwen2", "qwen3, tied, wide heads")
        for dtype in (torch.float32, torch.bfloat16)
        for shared in (False, True)
    },
}


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
