"""Master weights: the float32 weights that an optimizer steps, and their gradients.

They are all of a rank's parameters or, if replicas shard them (ZeRO-1), its shards. Megatron stores
the gradients of a stage in buffers, with ZeRO-1 also its weights; then each replica owns an equal
range of every bucket of a buffer.
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
from rlhf_runtime.engines.optimizer import decays
from rlhf_runtime.reshard.views import FlatShard, Views


@dataclass(frozen=True)
class Shard:
    """The part of a parameter that this rank's optimizer steps."""

    parameter: torch.nn.Parameter
    mapping: Parameter
    """The Hugging Face weights in the parameter."""
    layer: int | None
    """Layer over all stages, as in `Stage.mapped_parameters`."""
    elements: range
    """Range of the flattened parameter."""
    master: torch.Tensor
    """float32[elements]; the parameter's own storage where that is in float32."""
    gradient: torch.Tensor
    """float32[elements]: a view of Megatron's buffer."""

    @property
    def is_own_storage(self) -> bool:
        """True if stepping the master steps the parameter."""
        return self.parameter.dtype is torch.float32


class MasterWeights:
    """A rank's shards of the master weights of a stage."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._stage: Stage = model.module
        self._is_sharded: bool = model.ddp_config.use_distributed_optimizer
        owned = _owned_elements(model) if self._is_sharded else {}
        self._paths = {parameter: path for path, parameter in self._stage.named_parameters()}
        self.shards: dict[str, Shard] = {}
        """Shards by Megatron's path; parameters without an element on this rank are left out."""
        for parameter, mapping, layer in self._stage.mapped_parameters():
            elements = owned.get(parameter, range(parameter.numel()))
            if elements:
                shard = _shard(parameter, mapping, layer, elements)
                self.shards[self._paths[parameter]] = shard

    @property
    def share_storage(self) -> bool:
        """True if some masters are the parameters' own storage, in float32."""
        return any(parameter.dtype is torch.float32 for parameter in self._paths)

    def weights(self) -> dict[str, torch.Tensor]:
        """The master weights by Megatron's path."""
        return {path: shard.master for path, shard in self.shards.items()}

    def decayed(self) -> list[str]:
        """Megatron's paths of the parameters that weight decay applies to."""
        return [path for path, shard in self.shards.items() if decays(path, shard.parameter)]

    def views(self, flat: Mapping[str, torch.Tensor]) -> Views:
        """Views of tensors in the shape of shards, by Hugging Face name.

        Args:
            flat: such tensors by Megatron's path: masters, or a moment of the optimizer.
        """

        def storage(parameter: torch.nn.Parameter) -> FlatShard | None:
            path = self._paths[parameter]
            return FlatShard(flat[path], self.shards[path].elements.start) if path in flat else None

        return self._stage.views(storage)

    def names(self, path: str) -> list[str]:
        """The Hugging Face names of the weights in a parameter."""
        shard = self.shards[path]
        return [full_name(weight, shard.layer) for weight in shard.mapping.weights]

    def attach_gradients(self) -> None:
        """Set `grad` of the masters to the summed gradients."""
        for shard in self.shards.values():
            shard.master.grad = shard.gradient

    def gradient_norm(self) -> torch.Tensor:
        """Norm over all ranks' gradients, each weight counted once. Collective over the mesh."""
        stage, parallel = self._stage, self._stage.parallel
        counted = [shard.gradient for shard in self.shards.values() if _is_counted(stage, shard)]
        total = torch.zeros((), device=parallel.device)
        if counted:
            total += torch.stack(torch._foreach_norm(counted)).square().sum()
        dist.all_reduce(total, group=parallel.group)
        if not self._is_sharded:
            total /= parallel.data_size  # every replica has counted the same gradients
        return total.sqrt()

    @torch.no_grad()
    def write_parameters(self) -> None:
        """Copy the masters into the stage's parameters. Collective along the data axis."""
        for shard in self.shards.values():
            if not shard.is_own_storage:
                flat = shard.parameter.data.view(-1)
                flat[shard.elements.start : shard.elements.stop].copy_(shard.master)
        # With ZeRO-1 each replica has written only its range: gather those of the others.
        if self._is_sharded:
            for group in self._model.bucket_groups:
                group.start_param_sync(force_sync=True)


def _shard(
    parameter: torch.nn.Parameter, mapping: Parameter, layer: int | None, elements: range
) -> Shard:
    part = slice(elements.start, elements.stop)
    return Shard(
        parameter,
        mapping,
        layer,
        elements,
        parameter.data.view(-1)[part].float(),
        getattr(parameter, "main_grad").view(-1)[part],  # noqa: B009  # Megatron puts it there
    )


def _owned_elements(model: DistributedDataParallel) -> dict[torch.nn.Parameter, range]:
    """The elements of each parameter that this replica owns; may be none."""
    at = model.module.parallel.at
    owned = {}
    for buffer in model.buffers:
        for parameter, (start, stop, number) in buffer.param_index_map.items():
            bucket = buffer.buckets[number]
            size = bucket.grad_data.numel() // at.data_size
            first = bucket.offset + at.data * size
            # Ranges follow buckets, not parameters: a parameter may cross several replicas.
            begin, end = max(start, first), min(stop, first + size)
            owned[parameter] = range(begin - start, max(begin, end) - start)
    return owned


def _is_counted(stage: Stage, shard: Shard) -> bool:
    """True if this rank counts a shard in the norm."""
    # Replicated parameters are on all tensor ranks, and a tied embedding is on two stages.
    parameter, group = shard.parameter, stage.pg_collection.tp
    is_copy = getattr(parameter, "shared", False)
    return not is_copy and param_is_not_tensor_parallel_duplicate(parameter, group)
