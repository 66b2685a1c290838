"""From training to generation: the trainer's weights, resharded into vLLM's storage, verified."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.errors import StaleWeights, UnsupportedModel
from rlhf_runtime.reshard.checksum import piece_checksum
from rlhf_runtime.reshard.execute import PreparedTransfer
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.views import Views
from rlhf_runtime.workers.orders import Statistics


class Transition:
    """Keeps a generation engine's weights equal to a training engine's.

    Planned once, run after every update. Every rank of the role's mesh makes and refreshes it
    together.
    """

    def __init__(
        self, trainer: TrainingEngine, engine: VllmEngine, parallel: ParallelContext
    ) -> None:
        self._trainer = trainer
        self._engine = engine
        self._parallel = parallel
        self._version = -1
        self._source = trainer.views()
        self._target = engine.views()
        sources, targets = self._layouts()
        self._names = sorted(sources.shapes)
        self._copies = [_num_copies(targets, name) for name in self._names]
        self._transfer = PreparedTransfer(
            plan_reshard(sources, targets),
            parallel.rank,
            self._source,
            self._target,
            parallel.group,
        )

    def require_current(self) -> None:
        """Refuse to generate with other weights than the trainer's.

        Raises:
            StaleWeights: the engine has others, or none.
        """
        if self._version != self._trainer.version or not self._engine.has_weights:
            held = f"version {self._version}" if self._engine.has_weights else "none"
            raise StaleWeights(
                f"the engine has other weights than the trainer: got {held}, allowed version "
                f"{self._trainer.version}; the plan lacks a reshard before this call"
            )

    def refresh(self) -> Statistics:
        """Bring the engine's weights to the trainer's version, if they are not there yet.

        What the transfer needs is given back before the engine takes its cache.

        Raises:
            StaleWeights: the weights that arrived are not those that were sent.
        """
        if self._version == self._trainer.version and self._engine.has_weights:
            return Statistics()
        self._engine.restore_weights()
        moved = self._transfer.run()
        self._verify()
        self._engine.weights_written()
        self._version = self._trainer.version
        self._transfer.release()
        self._engine.restore_cache()
        return Statistics(
            means={
                "throughput/transition_bytes": (
                    float(moved.bytes_received),
                    1 / self._parallel.size,
                )
            }
        )

    def _layouts(self) -> tuple[Layout, Layout]:
        mine = (_pieces(self._source), _pieces(self._target))
        everyone = [mine]
        if self._parallel.size > 1:
            everyone = [mine] * self._parallel.size
            dist.all_gather_object(everyone, mine, self._parallel.group)
        sources, targets = zip(*everyone, strict=True)
        trained, generating = _shapes(sources), _shapes(targets)
        _check_names(set(trained), set(generating))
        return Layout(trained, sources), Layout(generating, targets)

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
                f"{self._trainer.version}; nothing was generated with them"
            )


def _pieces(views: Views) -> tuple[Piece, ...]:
    return tuple(Piece(name, view.box) for name, parts in views.items() for view in parts)


def _shapes(pieces: tuple[tuple[Piece, ...], ...]) -> dict[str, tuple[int, ...]]:
    """The full shape of every tensor, of which all ranks' pieces are known."""
    shapes: dict[str, tuple[int, ...]] = {}
    for of_rank in pieces:
        for name, box in of_rank:
            shapes[name] = tuple(map(max, shapes.get(name, box.stop), box.stop))
    return shapes


def _num_copies(layout: Layout, name: str) -> int:
    """How many ranks hold each element of a tensor."""
    held = sum(p.box.volume for pieces in layout.pieces for p in pieces if p.name == name)
    return held // max(1, math.prod(layout.shapes[name]))


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
