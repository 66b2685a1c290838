"""The planner's times for the runs of public readings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from readings_data import RATE, Kind, Reading

from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead, OffloadDepth
from rlhf_api.spec.models import Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.analytic_layers import AnalyticLayers, analytic_layers
from rlhf_planner.cost.batches import response_lengths_of
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.engine_host import host_seconds_of
from rlhf_planner.cost.generation import engine_of, generate_seconds
from rlhf_planner.cost.hardware import GIGA, HARDWARE, Hardware
from rlhf_planner.cost.micro_batches import CallRows, Lengths, replica_micro_batches
from rlhf_planner.cost.train_and_infer import infer_seconds, train_seconds
from rlhf_planner.cost.transfers import (
    load_seconds,
    offload_seconds,
    release_seconds,
    reshard_seconds,
)
from rlhf_planner.memory.engine_groups import TrainedModel
from rlhf_planner.memory.generation import GenerationCall, GenerationLoad
from rlhf_planner.memory.role_model import GIB, RoleModel

# Seconds to decode a token to text, the mean of nine that were logged (vllm-project/vllm, issue
# 5206).
TEXT_SECONDS = 2.6e-5
MILLISECONDS = 1000
# Multiple to which lengths are rounded up before sequences are packed (NVIDIA-NeMo/RL,
# examples/configs/grpo_math_1B.yaml: sequence_length_round).
PACK_ROUND = 64
BF16_BYTES = 2


def ours(reading: Reading) -> float:
    """Our figure, in the unit of the reading."""
    return _BY_KIND[reading.kind](reading)


def _decode(reading: Reading) -> float:
    layers, links = _layers(reading), _links(reading)
    group = links.group(0, reading.tensor, 1)
    engine = engine_of(reading.decoder, BF16_BYTES, layers, links, group)
    # Half of a response is there on average.
    cached = reading.sequences * (reading.prompt + reading.response / 2)
    return engine.decode(reading.sequences, cached).total * MILLISECONDS


def _generate(reading: Reading) -> float:
    load = GenerationLoad(
        shape=reading.decoder,
        mesh=_training_mesh(reading),
        device=Device.GPU,
        number_bytes=BF16_BYTES,
        max_prompt_tokens=round(reading.prompt),
        max_response_tokens=reading.longest or round(reading.response),
        max_concurrent_sequences=reading.at_once,
        engine=TrainingEngineType(reading.engine),
    )
    call = GenerationCall(reading.prompts, reading.samples)
    mesh = Mesh(pool="a", data=reading.engines, tensor=reading.tensor)
    cache = round(reading.cache_gib * GIB)
    prompt, response = _lengths(reading)
    layers, links = _layers(reading), _links(reading)
    return generate_seconds(load, call, mesh, cache, prompt, response, layers, links).total


def _train(reading: Reading) -> float:
    role = _role(reading, reading.micro_batch_tokens or reading.rows_per_gpu * reading.tokens)
    batch, layers, links = _batch(reading), _layers(reading), _links(reading)
    without, with_all = (
        train_seconds(
            replace(role, recompute=recompute), batch, layers, links, reading.updates
        ).total
        for recompute in (False, True)
    )
    seconds = without + reading.recompute * (with_all - without)
    seconds *= _padding(reading, role, reading.updates)
    if reading.unit == RATE:
        return reading.rows_per_gpu * reading.tokens / seconds
    return seconds


def _infer(reading: Reading) -> float:
    role = _role(reading, reading.infer_tokens or reading.micro_batch_tokens)
    seconds = infer_seconds(role, _batch(reading), _layers(reading), _links(reading)).total
    return seconds * _padding(reading, role, 1)


def _weights(reading: Reading) -> float:
    training = _training_mesh(reading)
    # The ranks that generate follow those that train.
    first = training.num_devices if reading.kind is Kind.WEIGHTS else 0
    engines = Mesh(pool="a", first_rank=first, data=reading.engines, tensor=reading.tensor)
    engine = TrainingEngineType(reading.engine)
    model = TrainedModel(reading.decoder, training, BF16_BYTES, engine, engines)
    return reshard_seconds(model, engines, _links(reading)).total


def _step(reading: Reading) -> float:
    role, links = _role(reading, reading.micro_batch_tokens), _links(reading)
    depth = OffloadDepth.EVERYTHING
    # Whoever generates has the devices for itself: training leaves and comes back.
    moves = offload_seconds(role, depth, links).total + load_seconds(role, depth, links).total
    forward = reading.forward_calls * _infer(reading)
    weights = reading.decoder.num_parameters * BF16_BYTES / reading.tensor
    released = release_seconds(weights + reading.cache_gib * GIB, links).total
    transitions = moves + released + _weights(reading)
    return transitions + _generate(reading) + forward + _train(reading)


_BY_KIND: Mapping[Kind, Callable[[Reading], float]] = {
    Kind.DECODE: _decode,
    Kind.GENERATE: _generate,
    Kind.TRAIN: _train,
    Kind.INFER: _infer,
    Kind.WEIGHTS: _weights,
    Kind.STEP: _step,
}


@lru_cache
def _hardware(
    gpu: str, clock: float, memory: float | None, vllm: str, decodes_text: bool
) -> Hardware:
    host = host_seconds_of(vllm)
    hardware = replace(
        HARDWARE[gpu],
        bfloat16_flops_per_second=HARDWARE[gpu].bfloat16_flops_per_second * clock,
        engine_step_seconds=host.step,
        engine_sequence_seconds=host.sequence + decodes_text * TEXT_SECONDS,
    )
    if memory is not None:
        hardware = replace(hardware, memory_bytes_per_second=memory * GIGA)
    return hardware


def _links(reading: Reading) -> Links:
    memory = reading.memory_gigabytes_per_second
    hardware = _hardware(reading.gpu, reading.clock, memory, reading.vllm, reading.decodes_text)
    return Links(hardware, reading.devices_per_node)


def _layers(reading: Reading) -> AnalyticLayers:
    return analytic_layers(_links(reading).hardware, reading.decoder, Precision.BFLOAT16)


def _lengths(reading: Reading) -> tuple[Lengths, Lengths]:
    prompt = Lengths(reading.prompt, reading.prompt)
    longest = reading.longest or reading.response
    return prompt, response_lengths_of(reading.response, longest, None)


def _batch(reading: Reading) -> CallRows:
    if reading.tokens:
        # Pretraining predicts all tokens of sequences of one length.
        rows = reading.rows_per_gpu * reading.gpus
        return CallRows(rows, Lengths(1.0, 1.0), Lengths(reading.tokens - 1, reading.tokens - 1))
    rows = reading.rows or reading.prompts * reading.samples
    prompt, response = _lengths(reading)
    if reading.scores_prompts:
        # All tokens after the first are predicted, as in pretraining.
        added = reading.prompt - 1
        longest = response.maximum + added
        prompt = Lengths(1.0, 1.0)
        response = Lengths(response.mean + added, longest, response.truncated)
    return CallRows(rows, prompt, response, rows_per_prompt=reading.samples)


def _padding(reading: Reading, role: RoleModel, updates: int) -> float:
    """Tokens of micro-batches that are padded to their limit, relative to the planner's."""
    if not reading.pads_stages:
        return 1.0
    prompt, response = _lengths(reading)
    rows = reading.prompts * reading.samples // (updates * reading.data)
    longer = [(row + 0.5) / rows for row in range(rows)]
    lengths = [prompt.mean + response.exceeded_by(share) for share in longer]
    rounded = [math.ceil(length / PACK_ROUND) * PACK_ROUND for length in lengths]
    padded = _num_packs(rounded, role.micro_batch_tokens) * role.micro_batch_tokens
    ours = replica_micro_batches(_batch(reading), role, updates)
    return padded / (ours.number * ours.tokens)


def _num_packs(lengths: Sequence[float], limit: float) -> int:
    """Packs of sequences, longest first, each put into the first pack with space for it."""
    left: list[float] = []
    for length in lengths:
        pack = next((number for number, space in enumerate(left) if space >= length), None)
        if pack is None:
            left.append(limit - length)
        else:
            left[pack] -= length
    return len(left)


def _training_mesh(reading: Reading) -> Mesh:
    data = reading.gpus or reading.data
    return Mesh(pool="a", data=data, tensor=reading.train_tensor, pipeline=reading.pipeline)


def _role(reading: Reading, micro_batch_tokens: int) -> RoleModel:
    return RoleModel(
        role="actor",
        mesh=_training_mesh(reading),
        device=Device.GPU,
        head=ModelHead.LM,
        is_trained=True,
        generates=True,
        shape=reading.decoder,
        precision=Precision.BFLOAT16,
        micro_batch_tokens=micro_batch_tokens,
        peak_tokens=micro_batch_tokens,
        batch_tokens=micro_batch_tokens,
        # No peer of these readings shares prompts.
        longest_shared_tokens=0,
        is_saved=True,
        recompute=False,
        engine=TrainingEngineType(reading.engine),
        sequence_parallel=True,
        distributed_optimizer=True,
    )
