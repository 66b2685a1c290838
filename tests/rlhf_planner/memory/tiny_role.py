"""A small role, for tests of what memory takes."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.spec.models import BuiltinModel, Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.problem.model_shapes import BUILTIN_MODELS


def tiny_role(**changes: Any) -> RoleModel:
    """An actor that FSDP trains on one CPU, a thousand tokens at a time."""
    made = RoleModel(
        role="actor",
        mesh=Mesh(pool="pool", data=1),
        device=Device.CPU,
        head=ModelHead.LM,
        is_trained=True,
        generates=True,
        shape=BUILTIN_MODELS[BuiltinModel.TINY_LLAMA],
        precision=Precision.FLOAT32,
        micro_batch_tokens=1000,
        peak_tokens=1000,
        batch_tokens=10**9,
        longest_shared_tokens=0,
        is_saved=False,
        recompute=False,
        engine=TrainingEngineType.FSDP,
        sequence_parallel=True,
        distributed_optimizer=True,
    )
    return dataclasses.replace(made, **changes)
