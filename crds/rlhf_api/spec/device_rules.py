"""Rules of the devices that a job asks for: they are in its node pools, and of one kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlhf_api.cel_literals import text
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.models import TrainingEngineType
from rlhf_api.spec.placement import PlacementType

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec


_POOLS = "self.resources.nodePools"
_TENSOR = "self.rollout.parallelism.tensor"
_SHAPE = "self.models['actor'].shape"
_PARALLELISM = "self.models[role].training.parallelism"


# CEL: a size of a role's parallelism; 1 if the planner chooses it.
def _ranks(size: str) -> str:
    field = f"{_PARALLELISM}.{size}"
    return f"(has({field}) ? {field} : 1)"


_DEVICES = f"{_POOLS}.map(pool, pool.nodes * pool.devicesPerNode).sum()"


def _pools_have_one_device(spec: RLHFJobSpec) -> Iterator[Violation]:
    first, *others = spec.resources.node_pools or (None,)
    for index, pool in enumerate(others, start=1):
        if first is not None and pool.device is not first.device:
            path = ("resources", "nodePools", index, "device")
            yield Violation(
                pool.device.value, path, f"{first.device.value}, as in pool {first.name}"
            )


def _limit_within_pools(spec: RLHFJobSpec) -> list[Violation]:
    return _too_many_devices(spec, spec.placement.max_devices)


def _engine_fits(spec: RLHFJobSpec) -> list[Violation]:
    return _too_many_devices(spec, spec.rollout.parallelism.tensor)


def _too_many_devices(spec: RLHFJobSpec, devices: int | None) -> list[Violation]:
    pools = spec.resources.node_pools
    total = sum(pool.num_devices for pool in pools)
    terms = " + ".join(f"{pool.nodes} x {pool.devices_per_node} ({pool.name})" for pool in pools)
    too_many = bool(pools) and devices is not None and devices > total
    return violation_if(too_many, devices, f"at most {total} = {terms}")


def _models_fit(spec: RLHFJobSpec) -> Iterator[Violation]:
    pools = spec.resources.node_pools
    largest = max((pool.num_devices for pool in pools), default=0)
    sizes = ", ".join(f"{pool.num_devices} ({pool.name})" for pool in pools)
    # Groups of a manual placement may set other sizes.
    is_manual = spec.placement.type is PlacementType.MANUAL
    for role, model in spec.models.items():
        cut = model.training.parallelism
        if pools and not is_manual and model.uses_megatron and cut.num_ranks > largest:
            yield Violation(
                f"tensor {cut.tensor} x pipeline {cut.pipeline} = {cut.num_ranks}",
                ("models", role, "training", "parallelism"),
                f"at most {largest}, of pools with {sizes}",
            )


def _heads_are_cut_evenly(spec: RLHFJobSpec) -> list[Violation]:
    actor, tensor = spec.models.get("actor"), spec.rollout.parallelism.tensor
    if actor is None or actor.shape is None or tensor is None:
        return []
    heads = actor.shape.num_attention_heads
    allowed = f"a divisor of models.actor.shape.numAttentionHeads, {heads}"
    return violation_if(heads % tensor != 0, tensor, allowed)


DEVICE_RULES: tuple[Rule, ...] = (
    Rule(
        holds=f"{_POOLS}.size() == 0 || !has(self.placement.maxDevices) || "
        f"self.placement.maxDevices <= {_DEVICES}",
        what="more devices than the node pools have",
        allowed="at most nodes x devicesPerNode",
        do="lower it or add nodes",
        field=".placement.maxDevices",
        check=_limit_within_pools,
    ),
    Rule(
        holds=f"{_POOLS}.size() == 0 || !has({_TENSOR}) || {_TENSOR} <= {_DEVICES}",
        what="one copy of the model needs more devices than the node pools have",
        allowed="at most nodes x devicesPerNode",
        do="lower it or add nodes",
        field=".rollout.parallelism.tensor",
        check=_engine_fits,
    ),
    # A replica never spans pools, so some pool must be large enough for it.
    Rule(
        holds=f"{_POOLS}.size() == 0 || self.placement.type == "
        f"{text(PlacementType.MANUAL)} || self.models.all(role, "
        f"self.models[role].training.engine != {text(TrainingEngineType.MEGATRON)} || "
        f"{_POOLS}.exists(pool, "
        f"{_ranks('tensor')} * {_ranks('pipeline')} <= pool.nodes * pool.devicesPerNode))",
        what="one copy of a model needs more devices than any node pool has",
        allowed="at most nodes x devicesPerNode for tensor x pipeline",
        do="lower tensor or pipeline, or add nodes",
        field=".models",
        check=_models_fit,
    ),
    # vLLM splits attention by query heads; key and value heads are replicated if there are too few.
    Rule(
        holds=f"!has({_TENSOR}) || !('actor' in self.models) || !has({_SHAPE}) || "
        f"{_SHAPE}.numAttentionHeads % {_TENSOR} == 0",
        what="the actor's query heads cannot be divided evenly among the tensor ranks",
        allowed="a divisor of models.actor.shape.numAttentionHeads",
        do="choose such a number or leave it to the planner",
        field=".rollout.parallelism.tensor",
        check=_heads_are_cut_evenly,
    ),
    Rule(
        holds=f"{_POOLS}.all(pool, pool.device == {_POOLS}[0].device)",
        what="pools of different devices",
        allowed="the same device in all",
        do="let all roles compute on GPUs, or all on CPUs",
        field=".resources.nodePools",
        check=_pools_have_one_device,
    ),
)
