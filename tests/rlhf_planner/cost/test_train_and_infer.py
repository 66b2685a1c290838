"""Training calls: limits, orders, and known magnitudes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import Precision
from rlhf_planner.cost.hardware import HARDWARE, RATES, Hardware
from rlhf_planner.cost.micro_batches import CallRows, Lengths
from rlhf_planner.cost.seconds import CallSeconds
from rlhf_planner.cost.train_and_infer import infer_seconds, train_seconds
from rlhf_planner.memory.role_model import RoleModel
from rlhf_sizing.shape import DecoderShape

from .simple import (
    FSDP,
    IDEAL,
    LLAMA_2_7B,
    LLAMA_2_13B,
    LLAMA_2_34B,
    LLAMA_2_70B,
    MEGATRON,
    a_role,
    equal,
    layers_of,
    links_of,
)

A100 = HARDWARE["A100-80G"]


def trained(role: RoleModel, batch: CallRows, hardware: Hardware = A100) -> CallSeconds:
    return train_seconds(role, batch, layers_of(role, hardware), links_of(hardware))


def large(shape: DecoderShape = LLAMA_2_7B, data: int = 8, **changes: object) -> RoleModel:
    made: dict[str, object] = {
        "shape": shape,
        "mesh": Mesh(pool="a", data=data),
        "precision": Precision.BFLOAT16,
        "micro_batch_tokens": 16384,
    }
    return a_role(**{**made, **changes})


def test_much_work_takes_as_long_as_its_flop() -> None:
    """6 FLOP for each weight and token in blocks, 8 in the head, nothing else on an ideal device
    but attention, which is short."""
    role, batch = large(data=1), CallRows(64, equal(1), equal(127))
    weights = 32 * LLAMA_2_7B.block_parameters
    flops = 64 * (6 * weights * 128 + 8 * LLAMA_2_7B.head_parameters * 127)
    assert trained(role, batch, IDEAL).total == pytest.approx(flops / 2e12, rel=0.01)
    half = replace(IDEAL, matmul_efficiency=0.5)
    assert trained(role, batch, half).total == pytest.approx(2 * flops / 2e12, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "tokens_at_once", "recompute", "reported"),
    [
        (LLAMA_2_7B, 2 * 4096, False, 3760),
        (LLAMA_2_13B, 1 * 4096, False, 1700),
        (LLAMA_2_34B, 8 * 4096, True, 772),
        (LLAMA_2_70B, 6 * 4096, True, 380),
    ],
)
def test_fsdp_on_a100_reaches_the_reported_throughput(
    shape: DecoderShape, tokens_at_once: int, recompute: bool, reported: float
) -> None:
    """Tokens per second and GPU, within 30 %: Llama 2 with FSDP on 128 A100, sequences of 4096.

    Source: github.com/foundation-model-stack/fms-fsdp, README (7B and 13B with replicas of shards,
    HSDP); the cluster's nodes have 400 Gbit/s each (PyTorch's blog on the same runs). With fused
    kernels, so that it may be faster than what is estimated here for plain PyTorch.
    """
    hardware = replace(A100, network_bytes_per_second=400e9 / 8 / 8)
    role = large(shape, 128, micro_batch_tokens=tokens_at_once, recompute=recompute)
    rows = 128 * tokens_at_once // 4096
    call = trained(role, CallRows(rows, equal(1), equal(4095)), hardware)
    assert rows * 4096 / call.total / 128 == pytest.approx(reported, rel=0.3)


def test_mfu_of_7b_on_a100_is_that_of_well_tuned_training() -> None:
    """40 to 60 % of the peak, as usual on A100: 57 % with FSDP (the source above), 44 to
    52 % with Megatron-LM (arXiv 2104.04473, table 1). FLOP as PaLM counts them (arXiv
    2204.02311, appendix B): 6 for each weight and token, 12 L q l for a token's attention, half of
    that as it is causal."""
    length, rows = 4096, 64
    call = trained(large(), CallRows(rows, equal(1), equal(length - 1)))
    attention = 12 * 32 * 4096 * length / 2
    flops = rows * length * (6 * LLAMA_2_7B.num_parameters + attention)
    assert 0.4 < flops / call.total / 8 / 312e12 < 0.6
    assert call.bottleneck == "compute"


def test_megatron_with_tensor_ranks_spends_more_on_communication_than_fsdp_with_many_tokens() -> (
    None
):
    batch = CallRows(64, equal(512), equal(512))
    fsdp = trained(large(), batch)
    megatron = trained(large(engine=MEGATRON, mesh=Mesh(pool="a", data=1, tensor=8)), batch)
    assert megatron.tensor_communication > fsdp.data_communication
    assert fsdp.total < megatron.total


def test_small_micro_batches_wait_for_weights() -> None:
    """What docs/adr/0022-plans-trade-time-for-memory.md works out for 300 GB/s and 400 TFLOP/s:
    with 4096 tokens they come while others compute, with 1024 it takes half as long again."""
    hardware = replace(
        IDEAL,
        bfloat16_flops_per_second=400e12,
        link_bytes_per_second=300e9,
    )
    exposed = {}
    for tokens in (1024, 4096):
        role = large(micro_batch_tokens=tokens)
        call = trained(role, CallRows(64, equal(256), equal(256)), hardware)
        exposed[tokens] = call.data_communication / call.compute
    assert exposed[4096] < 0.1 < 0.5 < exposed[1024]


def test_inference_is_a_third_of_training_or_less() -> None:
    role, batch = large(), CallRows(64, equal(512), equal(512))
    forward = infer_seconds(role, batch, layers_of(role, A100), links_of(A100))
    call = trained(role, batch)
    assert 0.25 < forward.compute / call.compute < 0.34
    assert forward.optimizer == 0


def test_estimates_are_found_again() -> None:
    role, batch = large(), CallRows(64, equal(512), equal(512))
    assert trained(role, batch) is trained(large(), CallRows(64, equal(512), equal(512)))


MESHES = [
    (FSDP, Mesh(pool="a", data=1)),
    (FSDP, Mesh(pool="a", data=8)),
    (FSDP, Mesh(pool="a", data=32)),
    (MEGATRON, Mesh(pool="a", data=4, tensor=2)),
    (MEGATRON, Mesh(pool="a", data=2, tensor=8, pipeline=2)),
]
LENGTHS = st.builds(
    lambda mean, ratio: Lengths(mean, mean * ratio), st.floats(16, 2000), st.floats(1, 10)
)


@st.composite
def roles(draw: st.DrawFn) -> RoleModel:
    engine, mesh = draw(st.sampled_from(MESHES))
    return large(
        draw(st.sampled_from([LLAMA_2_7B, LLAMA_2_70B])),
        engine=engine,
        mesh=mesh,
        micro_batch_tokens=draw(st.integers(256, 32768)),
        recompute=draw(st.booleans()),
        distributed_optimizer=draw(st.booleans()),
        sequence_parallel=draw(st.booleans()),
        precision=draw(st.sampled_from([Precision.BFLOAT16, Precision.FLOAT32])),
    )


BATCHES = st.builds(CallRows, st.integers(1, 2000), LENGTHS, LENGTHS)


@settings(deadline=None)
@given(roles(), BATCHES, st.sampled_from(list(HARDWARE)), st.sampled_from(RATES), st.floats(1, 100))
def test_faster_hardware_is_never_slower(
    role: RoleModel, batch: CallRows, name: str, rate: str, factor: float
) -> None:
    base = HARDWARE[name]
    faster = replace(base, **{rate: getattr(base, rate) * factor})
    for seconds in (train_seconds, infer_seconds):
        slow, quick = (
            seconds(role, batch, layers_of(role, hardware), links_of(hardware))
            for hardware in (base, faster)
        )
        assert quick.total <= slow.total * (1 + 1e-9)
        assert min(quick.parts.values()) >= 0


@settings(deadline=None)
@given(roles(), BATCHES)
def test_recomputation_is_never_faster(role: RoleModel, batch: CallRows) -> None:
    kept, computed = (trained(replace(role, recompute=again), batch) for again in (False, True))
    assert computed.total >= kept.total * (1 - 1e-9)


@settings(deadline=None)
@given(roles(), BATCHES, st.integers(1, 500))
def test_more_rows_are_never_faster(role: RoleModel, batch: CallRows, more: int) -> None:
    """But through several stages, where more micro-batches can make the bubble smaller."""
    if role.mesh.pipeline > 1:
        role = replace(role, mesh=Mesh(pool="a", data=4, tensor=8))
    base = trained(role, batch).total
    assert trained(role, replace(batch, rows=batch.rows + more)).total >= base * (1 - 1e-9)
    longer = Lengths(batch.response.mean * 1.2, batch.response.maximum * 1.2)
    assert trained(role, replace(batch, response=longer)).total >= base * (1 - 1e-9)


@settings(deadline=None)
@given(
    roles(),
    st.integers(1, 500),
    st.floats(16, 2000),
    st.integers(1, 64),
)
def test_larger_micro_batches_are_never_slower_with_fsdp(
    role: RoleModel, rows: int, tokens: float, factor: int
) -> None:
    """Of sequences of one length: others are padded to longer ones in larger micro-batches."""
    role = replace(role, engine=FSDP, mesh=Mesh(pool="a", data=role.mesh.num_devices))
    batch = CallRows(rows, equal(64), equal(tokens))
    larger = replace(role, micro_batch_tokens=role.micro_batch_tokens * factor)
    assert trained(larger, batch).total <= trained(role, batch).total * (1 + 1e-9)
