"""From training to generation: the trainer's weights, resharded into vLLM's storage, verified."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import torch

from rlhf_api.plan import GraphName
from rlhf_runtime.engines.parallel import RankGroup
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.errors import StaleWeights, UnsupportedModel
from rlhf_runtime.reshard.checksum import piece_checksum
from rlhf_runtime.reshard.execute import PreparedTransfer
from rlhf_runtime.reshard.gathering import gather_layouts
from rlhf_runtime.reshard.layout import num_copies
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.views import Views, is_same_memory
from rlhf_runtime.workers.orders import Statistics


class WeightVersion(NamedTuple):
    """When in a job's passes a call comes, as far as a role's weights are concerned: what a rank
    knows of them that generates and does not train."""

    graph: GraphName
    step: int
    changes: int
    """Calls of the pass before it that change the weights."""


class WeightSync:
    """Keeps a generation engine's weights equal to a training engine's.

    Planned once, run after every update. Every rank that trains or generates with the role makes
    and syncs it together; it may do both, or one. Each engine's weights must stay in the
    storage of the views that it gave at first.
    """

    def __init__(
        self,
        trainer: TrainingEngine | None,
        source: Views,
        engine: VllmEngine | None,
        ranks: RankGroup,
    ) -> None:
        """Plan it. Collective. Nothing of either engine has to be on its device.

        Args:
            trainer: what this rank trains. None: nothing.
            source: its views; of no trainer none. It gives them only while it is loaded.
            engine: what this rank generates with. None: it does not.
            ranks: all that do the one or the other.
        """
        self._trainer = trainer
        self._engine = engine
        self._ranks = ranks
        self._version = -1
        self.began = 0.0
        """When all ranks had come to the last sync; seconds since the epoch."""
        self._weight_version: WeightVersion | None = None
        self._source = source
        self._target: Views = {} if engine is None else engine.views()
        group = ranks.group if ranks.size > 1 else None
        gathered = gather_layouts(self._source, self._target, group)
        _check_names(set(gathered.source.shapes), set(gathered.target.shapes))
        self._names = sorted(gathered.source.shapes)
        self._source_copies, self._target_copies = (
            torch.tensor([copies[name] for name in self._names])
            for copies in (num_copies(gathered.source), num_copies(gathered.target))
        )
        self._transfer = PreparedTransfer(
            plan_reshard(*gathered), ranks.rank, self._source, self._target, ranks.group
        )

    def require_current(self, weight_version: WeightVersion) -> None:
        """Refuse to generate with other weights than the trainer's.

        Args:
            weight_version: of the call that generates.

        Raises:
            StaleWeights: the engine has others, or none.
        """
        assert self._engine is not None, "who does not generate needs no weights"
        if self._trainer is None:
            is_same, wanted = (
                weight_version == self._weight_version,
                "those of the pass, after its updates so far",
            )
        else:
            is_same = self._version == self._trainer.version
            wanted = f"version {self._trainer.version}"
        if not is_same or not self._engine.has_weights:
            held = f"version {self._version}" if self._engine.has_weights else "none"
            raise StaleWeights(
                f"the engine has other weights than the trainer: got {held}, allowed {wanted}; the "
                "plan lacks a reshard before this call"
            )

    def sync(self, weight_version: WeightVersion) -> Statistics:
        """Bring the engine's weights to the trainer's version, if they are not there yet.
        Collective.

        What the transfer needs is given back before the engine takes its cache, to generate.

        Args:
            weight_version: of the call that asks for it.

        Raises:
            StaleWeights: the weights that arrived are not those that were sent, or the trainer has
                its own elsewhere now.
            NotLoaded: the trainer's are on the host.
        """
        self._weight_version = weight_version
        version, any_lacks = self._agree()
        self.began = time.time()
        if version == self._version and not any_lacks:
            return Statistics()
        if self._trainer is not None:
            self._trainer.require_loaded()
        self._require_same_storage()
        if self._engine is not None:
            self._engine.restore_weights()
        moved = self._transfer.run()
        self._verify(version)
        if self._engine is not None:
            self._engine.weights_written()
        self._version = version
        self._transfer.release()
        moved_bytes = (float(moved.bytes_received), 1 / self._ranks.size)
        return Statistics(means={"throughput/transition_bytes": moved_bytes})

    def _agree(self) -> tuple[int, bool]:
        """The trainer's version, and whether any engine has no weights: equal on all ranks."""
        version = -1 if self._trainer is None else self._trainer.version
        lacks = self._engine is not None and not self._engine.has_weights
        version, any_lacks = self._ranks.max(torch.tensor([version, int(lacks)])).tolist()
        return version, bool(any_lacks)

    def _require_same_storage(self) -> None:
        """What is sent is what lies in the first views, and checksums are of nothing else."""
        for name, now in ({} if self._trainer is None else self._trainer.views()).items():
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

    def _verify(self, version: int) -> None:
        """Compare, tensor by tensor, the checksums of all that was sent and all that arrived.

        On either side every element of a tensor is held by the same number of ranks, so that sums
        over all ranks are as many times the tensor's checksum. Ranks that train copies
        hold the same bits: where those of a norm, say, have drifted apart, that is found, too.
        """
        sent = _checksums(self._names, self._source, self._transfer.dtypes)
        arrived = _checksums(self._names, self._target, self._transfer.dtypes)
        sent, arrived = self._ranks.sum(torch.stack([sent, arrived]))
        expected, found = sent * self._target_copies, arrived * self._source_copies
        wrong = torch.nonzero(expected != found).flatten().tolist()
        if wrong:
            raise StaleWeights(
                f"weights changed on their way to generation: got other checksums for {len(wrong)} "
                f"of {len(self._names)} tensors, the first {self._names[wrong[0]]}, at version "
                f"{version}; nothing was generated with them"
            )


def _checksums(names: list[str], views: Views, dtypes: Mapping[str, torch.dtype]) -> torch.Tensor:
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
