"""Weights from one model to another on the same ranks, however each is cut."""

from __future__ import annotations

from collections.abc import Collection

import torch.distributed as dist

from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.reshard.execute import execute
from rlhf_runtime.reshard.gathering import gather_layouts
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.views import Views


def copy_weights(
    source: Views, target: Views, parallel: ParallelContext, entirely: bool = False
) -> None:
    """Overwrite the target's weights by the source's of the same name and shape. Collective.

    Weights that only one of them has (a value head) are left alone.

    Args:
        source: this rank's storage of one model.
        target: the same of the other.
        parallel: the ranks that have both.
        entirely: whether both must have the same weights.

    Raises:
        UnsupportedModel: they have not.
    """
    group: dist.ProcessGroup | None = parallel.group if parallel.size > 1 else None
    given, wanted, topology = gather_layouts(source, target, group)
    if entirely:
        _require_alike(given, wanted)
    both = {name for name, shape in wanted.shapes.items() if given.shapes.get(name) == shape}
    plan = plan_reshard(_only(given, both), _only(wanted, both), topology)
    one, other = ({name: views[name] for name in both & views.keys()} for views in (source, target))
    execute(plan, parallel.rank, one, other, parallel.group)


def _only(layout: Layout, names: Collection[str]) -> Layout:
    shapes = {name: layout.shapes[name] for name in sorted(names)}
    pieces = tuple(tuple(p for p in of_rank if p.name in names) for of_rank in layout.pieces)
    return Layout(shapes, pieces)


def _require_alike(source: Layout, target: Layout) -> None:
    for name in sorted({*source.shapes, *target.shapes}):
        one, other = source.shapes.get(name), target.shapes.get(name)
        if one != other:
            raise UnsupportedModel(
                f"weights cannot be copied between models that differ: got {name} of shape "
                f"{one or 'none'} and {other or 'none'}, allowed the same; give both roles models "
                "of one architecture"
            )
