"""Weights from one model to another on the same ranks, which are cut alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.reshard.views import View, Views


def copy_weights(source: Views, target: Views, entirely: bool = False) -> None:
    """Overwrite the target's weights by the source's of the same name and box, rank by rank.

    Weights that only one of them has (a value head) are left alone.

    Args:
        source: this rank's storage of one model.
        target: the same of the other.
        entirely: whether both must have the same weights.

    Raises:
        UnsupportedModel: they have not.
    """
    if entirely:
        _require_alike(source, target)
    with torch.no_grad():
        for name, views in target.items():
            given = {view.box: view.tensor for view in source.get(name, ())}
            for tensor, box in views:
                if box in given:
                    tensor.copy_(given[box])


def _require_alike(source: Views, target: Views) -> None:
    for name in sorted({*source, *target}):
        one, other = source.get(name, ()), target.get(name, ())
        if [view.box for view in one] != [view.box for view in other]:
            raise UnsupportedModel(
                f"weights cannot be copied between models that differ: got {name} of shape "
                f"{_shape(one)} and {_shape(other)}, allowed the same; give both roles models of "
                "one architecture"
            )


def _shape(views: Sequence[View]) -> str:
    return " and ".join(str(view.box.shape) for view in views) or "none"
