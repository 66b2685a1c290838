"""From training to generation: the trainer's weights, resharded into vLLM's storage, verified."""

from __future__ import annotations

import math

import torch

from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.errors import StaleWeights, UnsupportedModel
from rlhf_runtime.reshard.checksum import piece_checksum
from rlhf_runtime.reshard.execute import PreparedTransfer
from rlhf_runtime.reshard.gathering import gather_layouts
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.views import Views, is_same_memory
from rlhf_runtime.workers.orders import Statistics


class Transition:
    """Keeps a generation engine's weights equal to a training engine's.

    Planned once, run after every update. Every rank of the role's mesh makes and refreshes it
    together. Each engine's weights must stay in the storage of the views that it gave at first.
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
        group = parallel.group if parallel.size > 1 else None
        gathered = gather_layouts(self._source, self._target, group)
        _check_names(set(gathered.source.shapes), set(gathered.target.shapes))
        self._names = sorted(gathered.source.shapes)
        self._source_copies = _num_copies(gathered.source, self._names)
        self._target_copies = _num_copies(gathered.target, self._names)
        self._transfer = PreparedTransfer(
            plan_reshard(*gathered),
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
            StaleWeights: the weights that arrived are not those that were sent, or the trainer has
                its own elsewhere now.
        """
        if self._version == self._trainer.version and self._engine.has_weights:
            return Statistics()
        self._require_same_storage()
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

    def _require_same_storage(self) -> None:
        """What is sent is what lies in the first views, and checksums are of nothing else."""
        for name, now in self._trainer.views().items():
            before = self._source.get(name, ())
            if len(now) != len(before) or not all(
                is_same_memory(one.tensor, other.tensor)
                for one, other in zip(now, before, strict=True)
            ):
                raise StaleWeights(
                    f"the trainer has moved its weights: got other storage for {name} than when "
                    "the transition was planned, allowed the same; an engine must take its memory "
                    "before it gives its views"
                )

    def _verify(self) -> None:
        """Compare, tensor by tensor, the checksums of all that was sent and all that arrived.

        On either side every element of a tensor is held by the same number of ranks, so that sums
        over all ranks of the mesh are as many times the tensor's checksum. Ranks that train copies
        hold the same bits: where those of a norm, say, have drifted apart, that is found, too.
        """
        dtypes = {name: views[0].tensor.dtype for name, views in self._target.items()}
        sent = _checksums(self._names, self._source, dtypes)
        arrived = _checksums(self._names, self._target, dtypes)
        sent, arrived = self._parallel.sum_over_mesh(torch.stack([sent, arrived]))
        expected, found = sent * self._target_copies, arrived * self._source_copies
        wrong = torch.nonzero(expected != found).flatten().tolist()
        if wrong:
            raise StaleWeights(
                f"weights changed on their way to generation: got other checksums for {len(wrong)} "
                f"of {len(self._names)} tensors, the first {self._names[wrong[0]]}, at version "
                f"{self._trainer.version}; nothing was generated with them"
            )


def _num_copies(layout: Layout, names: list[str]) -> torch.Tensor:
    """int64[names]: how many ranks hold each element of a tensor."""
    copies: dict[str, int] = {}
    for family in layout.families:
        held = sum(box.volume * len(ranks) for box, ranks in family.holders.items())
        number, rest = divmod(held, max(1, math.prod(family.shape)))
        assert not rest, f"parts of {family.names[0]} are held by unequally many ranks"
        copies |= dict.fromkeys(family.names, number)
    return torch.tensor([copies[name] for name in names])


def _checksums(names: list[str], views: Views, dtypes: dict[str, torch.dtype]) -> torch.Tensor:
    device = next((view.tensor.device for of in views.values() for view in of), None)
    nothing = torch.zeros((), dtype=torch.int64, device=device)
    sums = [
        sum(
            (piece_checksum(view.tensor, view.box, dtypes[name]) for view in views.get(name, ())),
            nothing,
        )
        for name in names
    ]
    return torch.stack(sums).cpu()  # all at once: the host would wait for each of them


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
