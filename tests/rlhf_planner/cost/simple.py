"""Devices and models whose seconds are worked out by hand, and jobs of usual sizes, for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.spec.models import Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.analytic_layers import AnalyticLayers, analytic_layers
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.memory.role_model import RoleModel
from rlhf_sizing.shape import DecoderShape

FSDP, MEGATRON = TrainingEngineType.FSDP, TrainingEngineType.MEGATRON

ENDLESS = 1e30
"""Bytes/s, or FLOP/s, of what takes no time."""

IDEAL = Hardware(
    name="ideal",
    device=Device.GPU,
    float32_flops_per_second=1e12,
    bfloat16_flops_per_second=2e12,
    memory_bytes_per_second=ENDLESS,
    link_bytes_per_second=ENDLESS,
    network_bytes_per_second=ENDLESS,
    host_bytes_per_second=ENDLESS,
    matmul_efficiency=1.0,
    matmul_half_tokens=0.0,
    attention_efficiency=1.0,
    memory_efficiency=1.0,
    link_efficiency=1.0,
    network_efficiency=1.0,
    host_efficiency=1.0,
    collective_seconds=0.0,
    link_latency_seconds=0.0,
    network_latency_seconds=0.0,
    eager_kernel_seconds=0.0,
    graph_kernel_seconds=0.0,
    engine_step_seconds=0.0,
    engine_sequence_seconds=0.0,
)
"""Only FLOP take time, and reach the peak."""

SMALL = DecoderShape(
    num_layers=2,
    hidden_size=8,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=64,
)
"""576 weights in the matrices of a block: 8 (8 + 8) of attention's projections, 8 x 8 of its
output, 3 x 8 x 16. 512 in the table and in the head."""

LLAMA_2_7B = DecoderShape(32, 4096, 11008, 32, 32, 128, vocab_size=32000)
LLAMA_2_13B = DecoderShape(40, 5120, 13824, 40, 40, 128, vocab_size=32000)
LLAMA_2_34B = DecoderShape(48, 8192, 22016, 64, 8, 128, vocab_size=32000)
LLAMA_2_70B = DecoderShape(80, 8192, 28672, 64, 8, 128, vocab_size=32000)


def equal(tokens: float) -> Lengths:
    """All of one length."""
    return Lengths(tokens, tokens)


def a_role(**changes: Any) -> RoleModel:
    """An actor that FSDP trains on one GPU in float32, a thousand tokens at a time."""
    role = RoleModel(
        role="actor",
        mesh=Mesh(pool="a", data=1),
        device=Device.GPU,
        head=ModelHead.LM,
        is_trained=True,
        generates=True,
        shape=SMALL,
        precision=Precision.FLOAT32,
        micro_batch_tokens=1000,
        peak_tokens=1000,
        batch_tokens=10**9,
        longest_shared_tokens=0,
        is_saved=True,
        recompute=False,
        engine=FSDP,
        sequence_parallel=True,
        distributed_optimizer=True,
    )
    return dataclasses.replace(role, **changes)


def layers_of(role: RoleModel, hardware: Hardware) -> AnalyticLayers:
    """Its layers by data sheets."""
    return analytic_layers(hardware, role.shape, role.precision)


def links_of(hardware: Hardware, devices_per_node: int = 8) -> Links:
    """A pool of nodes of eight."""
    return Links(hardware, devices_per_node)
