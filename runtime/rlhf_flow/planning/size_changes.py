"""Changes of how much is computed at once, and of how models are cut. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from rlhf_api.plan import Pool
from rlhf_api.spec.model_cut import uneven_pipeline, uneven_tensor
from rlhf_api.spec.models import Offload, TrainingEngineType, TrainingParallelism
from rlhf_flow.planning.changes import (
    Change,
    Changed,
    Path,
    smaller_number,
    value_at,
    with_field,
)
from rlhf_flow.planning.shapes import DecoderShape

SHORTEST_PART = 8
"""Lengths are not advised below this part of what was asked for: it would be another job."""


def size_changes(asked: Changed, shapes: Mapping[str, DecoderShape]) -> list[Change]:
    """Changes of how much is computed at once, and of how models are cut."""
    job, rollout = asked.job, asked.job.spec.rollout
    where: Path = ("spec", "rollout")
    lengths = [
        smaller_number(f"rollout.{name}", (*where, field), job, -(-given // SHORTEST_PART))
        for name, field, given in (
            ("maxResponseTokens", "max_response_tokens", rollout.max_response_tokens),
            ("maxPromptTokens", "max_prompt_tokens", rollout.max_prompt_tokens),
        )
    ]
    concurrency = smaller_number(
        "rollout.maxConcurrentSequences", (*where, "max_concurrent_sequences"), job, 1
    )
    return [*_cuts(asked, shapes), *lengths, concurrency]


def _cuts(asked: Changed, shapes: Mapping[str, DecoderShape]) -> Iterator[Change]:
    """Other cuts of what Megatron trains, and of what FSDP does if Megatron did."""
    models = asked.job.spec.models
    megatron = [role for role, model in models.items() if model.uses_megatron]
    names = ", ".join(f"models.{role}.training" for role in megatron or models)
    begin = f"set parallelism of {names}" if megatron else f"set engine of {names} to Megatron"

    def text(cut: tuple[int, int]) -> str:
        to = f"{{tensor: {cut[0]}, pipeline: {cut[1]}}}"
        return f"{begin} to {to}" if megatron else f"{begin}, with parallelism {to}"

    def apply(changed: Changed, cut: tuple[int, int]) -> Changed:
        for role in megatron or models:
            path: Path = ("spec", "models", role, "training")
            sequence = value_at(changed.job, path).parallelism.sequence
            tensor, pipeline = cut
            parallelism = TrainingParallelism(tensor=tensor, pipeline=pipeline, sequence=sequence)
            changed = with_field(changed, TrainingEngineType.MEGATRON, path=(*path, "engine"))
            changed = with_field(changed, parallelism, path=(*path, "parallelism"))
        return changed

    cuts = _possible_cuts(asked.devices, [shapes[role] for role in models if role in shapes])
    now = max((models[role].training.parallelism.num_ranks for role in megatron), default=1)
    yield Change([cut for cut in cuts if cut[0] * cut[1] > now], apply, text)
    if megatron:
        derived = any(models[role].training.offload is Offload.DERIVED for role in megatron)
        left_out = "parallelism and offload: Derived" if derived else "parallelism"
        yield Change(
            [TrainingEngineType.FSDP],
            partial(_to_fsdp, roles=megatron),
            lambda engine: f"set engine of {names} to {engine.value}, without {left_out}",
        )


def _to_fsdp(changed: Changed, engine: TrainingEngineType, roles: Sequence[str]) -> Changed:
    for role in roles:
        path: Path = ("spec", "models", role, "training")
        changed = with_field(changed, engine, path=(*path, "engine"))
        changed = with_field(changed, TrainingParallelism(), path=(*path, "parallelism"))
        changed = with_field(changed, True, path=(*path, "distributed_optimizer"))
        if value_at(changed.job, path).offload is Offload.DERIVED:
            changed = with_field(changed, Offload.AUTO, path=(*path, "offload"))
    return changed


def _possible_cuts(
    devices: Sequence[Pool], shapes: Sequence[DecoderShape]
) -> list[tuple[int, int]]:
    """Tensor ranks and stages in powers of two that devices and models allow; for each number of
    both together that with most tensor ranks, as these share activations, too."""
    per_node = min(pool.devices_per_node for pool in devices)
    total = min(pool.num_devices for pool in devices)
    powers = [2**k for k in range(total.bit_length())]
    best: dict[int, tuple[int, int]] = {}
    for tensor in powers:
        if per_node % tensor or any(any(uneven_tensor(shape, tensor)) for shape in shapes):
            continue
        for pipeline in powers:
            if total % (tensor * pipeline) == 0 and not any(
                any(uneven_pipeline(shape, pipeline)) for shape in shapes
            ):
                best[tensor * pipeline] = (tensor, pipeline)
    return [best[size] for size in sorted(best)]
