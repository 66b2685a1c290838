"""From training to generation: the trainer's weights, resharded into vLLM's storage, verified."""

from __future__ import annotations

import math

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlhf_runtime.engines.fsdp.model import FsdpModel
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.errors import StaleWeights, UnsupportedModel
from rlhf_runtime.reshard.boxes import Box
from rlhf_runtime.reshard.checksum import piece_checksum
from rlhf_runtime.reshard.execute import PreparedTransfer
from rlhf_runtime.reshard.gathering import gather_layouts
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.views import View, Views
from rlhf_runtime.workers.orders import Statistics


class Transition:
    """Keeps an engine's weights equal to a model's. Planned once, run after every update.

    Every rank of the role's mesh makes and refreshes it together.
    """

    def __init__(self, model: FsdpModel, engine: VllmEngine, parallel: ParallelContext) -> None:
        self._model = model
        self._engine = engine
        self._parallel = parallel
        self._version = -1
        shapes = {name: tuple(p.shape) for name, p in model.module.named_parameters()}
        self._source = source_views(model)
        self._target = engine.views()
        _check_names(set(shapes), set(self._target))
        group = parallel.group if parallel.size > 1 else None
        gathered = gather_layouts(shapes, self._source, self._target, group)
        self._names = sorted(shapes)
        copies = _num_copies(gathered.target)
        self._copies = [copies[name] for name in self._names]
        self._transfer = PreparedTransfer(
            plan_reshard(*gathered),
            parallel.rank,
            self._source,
            self._target,
            parallel.group,
        )

    def refresh(self) -> Statistics:
        """Bring the engine's weights to the model's version, if they are not there yet.

        Raises:
            StaleWeights: the weights that arrived are not those that were sent.
        """
        self._engine.restore()
        if self._version == self._model.version and self._engine.has_weights:
            return Statistics()
        moved = self._transfer.run()
        self._verify()
        self._engine.weights_written()
        self._version = self._model.version
        return Statistics(
            means={
                "throughput/transition_bytes": (
                    float(moved.bytes_received),
                    1 / self._parallel.size,
                )
            }
        )

    def release(self) -> None:
        """Give back the memory in which weights wait for their transfer."""
        self._transfer.release()

    def _verify(self) -> None:
        """Compare, tensor by tensor, the checksums of all that was sent and all that arrived.

        Every element is held by the same number of ranks on the generation side, so the sum over
        the ranks must be that many times the source's.
        """
        dtypes = {name: views[0].tensor.dtype for name, views in self._target.items()}
        sent = _checksums(self._names, self._source, dtypes)
        arrived = _checksums(self._names, self._target, dtypes)
        sent, arrived = self._parallel.sum(torch.stack([sent, arrived]))
        wrong = torch.nonzero(sent * torch.tensor(self._copies) != arrived).flatten().tolist()
        if wrong:
            raise StaleWeights(
                f"weights changed on their way to generation: got other checksums for {len(wrong)} "
                f"of {len(self._names)} tensors, the first {self._names[wrong[0]]}, at version "
                f"{self._model.version}; nothing was generated with them"
            )


def source_views(model: FsdpModel) -> Views:
    """This rank's rows of every parameter."""
    views: dict[str, list[View]] = {}
    for name, parameter in model.module.named_parameters():
        if isinstance(parameter, DTensor):
            shape, start = compute_local_shape_and_global_offset(
                parameter.shape, parameter.device_mesh, parameter.placements
            )
            box = Box(tuple(start), tuple(shape))
            views[name] = [View(parameter.to_local().detach(), box)]
        else:
            views[name] = [View(parameter.data, Box.whole(tuple(parameter.shape)))]
    return views


def _num_copies(layout: Layout) -> dict[str, int]:
    """How many ranks hold each element of a tensor, by name."""
    return {
        name: sum(box.volume * len(ranks) for box, ranks in family.holders.items())
        // max(1, math.prod(family.shape))
        for family in layout.families
        for name in family.names
    }


def _checksums(names: list[str], views: Views, dtypes: dict[str, torch.dtype]) -> torch.Tensor:
    sums = [
        sum(
            (piece_checksum(view.tensor, view.box, dtypes[name]) for view in views.get(name, ())),
            torch.zeros((), dtype=torch.int64),
        )
        for name in names
    ]
    return torch.stack([total.cpu() for total in sums])


def _check_names(trained: set[str], generating: set[str]) -> None:
    if trained == generating:
        return
    only_trained = sorted(trained - generating)[:3]
    only_generating = sorted(generating - trained)[:3]
    raise UnsupportedModel(
        "training and generation name the model's weights differently: got "
        f"{', '.join(only_trained) or 'none'} only in training and "
        f"{', '.join(only_generating) or 'none'} only in generation; use a model whose vLLM class "
        "keeps Hugging Face's names"
    )
