"""Where FSDP2 keeps each weight: views of the rank's own rows, with boxes."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views


def row_views(model: nn.Module) -> Views:
    """This rank's rows of every parameter, or all where nothing is cut, by Hugging Face name."""
    views: dict[str, list[View]] = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            shape, start = compute_local_shape_and_global_offset(
                parameter.shape, parameter.device_mesh, parameter.placements
            )
            box = TensorSlice(tuple(start), tuple(shape))
            views[name] = [View(parameter.to_local().detach(), box)]
        else:
            views[name] = [View(parameter.data, TensorSlice.full(tuple(parameter.shape)))]
    return views
