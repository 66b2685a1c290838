"""The float32 weights that an optimizer steps, and their gradients: all of a rank's parameters, or,
where replicas share them (ZeRO-1), its share.

Megatron keeps the gradients of a stage in buffers; where replicas share, its weights too, and each
replica is responsible for an equal range of every bucket of a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rlhf_runtime.engines.megatron.architecture import full_name
from rlhf_runtime.engines.megatron.core import (
    DistributedDataParallel,
    param_is_not_tensor_parallel_duplicate,
)
from rlhf_runtime.engines.megatron.family import Parameter
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.reshard.views import FlatShard, Views


@dataclass(frozen=True)
class Shard:
    """The part of a parameter that this rank's optimizer steps."""

    parameter: torch.nn.Parameter
    held: Parameter
    """What it holds of Hugging Face's weights."""
    layer: int | None
    """As of `Stage.held`."""
    elements: range
    """Of the flattened parameter."""
    master: torch.Tensor
    """float32[elements]; the parameter's own storage where that is in float32."""
    gradient: torch.Tensor
    """float32[elements]: a view of Megatron's buffer."""

    @property
    def is_own_storage(self) -> bool:
        """Whether stepping the master steps the parameter."""
        return self.parameter.dtype is torch.float32


class MasterWeights:
    """A rank's shards of a stage with gradients."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._stage: Stage = model.module
        self._is_sharded: bool = model.ddp_config.use_distributed_optimizer
        owned = _owned_elements(model) if self._is_sharded else {}
        self._paths = {parameter: path for path, parameter in self._stage.named_parameters()}
        self.shards: dict[str, Shard] = {}
        """By Megatron's path; parameters of which this rank steps nothing are left out."""
        for parameter, held, layer in self._stage.held():
            elements = owned.get(parameter, range(parameter.numel()))
            if elements:
                shard = _shard(parameter, held, layer, elements)
                self.shards[self._paths[parameter]] = shard

    @property
    def are_parameters(self) -> bool:
        """Whether some of them are parameters' own storage, in float32."""
        return any(parameter.dtype is torch.float32 for parameter in self._paths)

    def weights(self) -> dict[str, torch.Tensor]:
        """What an optimizer steps, by Megatron's path."""
        return {path: shard.master for path, shard in self.shards.items()}

    def views(self, flat: Mapping[str, torch.Tensor]) -> Views:
        """For each Hugging Face name the views of something that a rank has of its shards.

        Args:
            flat: by Megatron's path, of a shard's shape.
        """

        def storage(parameter: torch.nn.Parameter) -> FlatShard | None:
            path = self._paths[parameter]
            return FlatShard(flat[path], self.shards[path].elements.start) if path in flat else None

        return self._stage.views(storage)

    def names(self, path: str) -> list[str]:
        """The Hugging Face names of the weights in a parameter."""
        shard = self.shards[path]
        return [full_name(weight, shard.layer) for weight in shard.held.weights]

    def give_gradients(self) -> None:
        """Let an optimizer find what was summed up."""
        for shard in self.shards.values():
            shard.master.grad = shard.gradient

    def gradient_norm(self) -> torch.Tensor:
        """Of all ranks' gradients, each weight counted once. Collective over the mesh."""
        stage, parallel = self._stage, self._stage.parallel
        counted = [shard.gradient for shard in self.shards.values() if _counts(stage, shard)]
        total = torch.zeros((), device=parallel.device)
        if counted:
            total += torch.stack(torch._foreach_norm(counted)).square().sum()
        dist.all_reduce(total, group=parallel.group)
        if not self._is_sharded:
            total /= parallel.data_size  # replicas have counted the same
        return total.sqrt()

    @torch.no_grad()
    def write_parameters(self) -> None:
        """Give the stage what was stepped. Collective along the data axis."""
        for shard in self.shards.values():
            if not shard.is_own_storage:
                flat = shard.parameter.data.view(-1)
                flat[shard.elements.start : shard.elements.stop].copy_(shard.master)
        if self._is_sharded:
            for group in self._model.bucket_groups:
                group.start_param_sync(force_sync=True)


def _shard(
    parameter: torch.nn.Parameter, held: Parameter, layer: int | None, elements: range
) -> Shard:
    part = slice(elements.start, elements.stop)
    return Shard(
        parameter,
        held,
        layer,
        elements,
        parameter.data.view(-1)[part].float(),
        getattr(parameter, "main_grad").view(-1)[part],  # noqa: B009  # Megatron puts it there
    )


def _owned_elements(model: DistributedDataParallel) -> dict[torch.nn.Parameter, range]:
    """Which of each parameter's elements this replica steps; may be none."""
    at = model.module.parallel.at
    owned = {}
    for buffer in model.buffers:
        for parameter, (start, stop, number) in buffer.param_index_map.items():
            bucket = buffer.buckets[number]
            size = bucket.grad_data.numel() // at.data_size
            first = bucket.offset + at.data * size
            begin, end = max(start, first), min(stop, first + size)
            owned[parameter] = range(begin - start, max(begin, end) - start)
    return owned


def _counts(stage: Stage, shard: Shard) -> bool:
    """Whether a norm counts a shard here: tensor ranks may hold the same, and both ends of a tied
    model do."""
    parameter, group = shard.parameter, stage.pg_collection.tp
    is_copy = getattr(parameter, "shared", False)
    return not is_copy and param_is_not_tensor_parallel_duplicate(parameter, group)
