"""Copies the trainer's weights into the generation engine's storage, verified by checksum."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from rlhf_api.plan import GraphName
from rlhf_runtime.calls.reports import Statistics
from rlhf_runtime.engines.generation import GenerationEngine
from rlhf_runtime.engines.parallel import RankGroup
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.errors import StaleWeights, UnsupportedModel
from rlhf_runtime.reshard.checksum import tensor_checksums
from rlhf_runtime.reshard.execute import PreparedTransfer
from rlhf_runtime.reshard.gathering import gather_layouts
from rlhf_runtime.reshard.layout import num_copies
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.views import Views, is_same_memory


class WeightVersion(NamedTuple):
    """The version of a role's weights that a call needs, by its position in the job's passes."""

    # A rank that only generates has no counter of updates, but it knows this position.

    graph: GraphName
    step: int
    changes: int
    """Earlier calls of the pass that change the weights."""


class WeightSync:
    """Keeps a generation engine's weights equal to a training engine's.

    Planned once, run after every update. Collective over all ranks that train the role or generate
    with it; a rank may do both, or one. Each engine's weights must stay in the storage of the views
    that it gave first.
    """

    def __init__(
        self,
        trainer: TrainingEngine | None,
        source: Views,
        engine: GenerationEngine | None,
        ranks: RankGroup,
    ) -> None:
        """Plan the transfer. Collective. Neither engine has to be on its device.

        Args:
            trainer: this rank's training engine. None: it does not train the role.
            source: the trainer's views, taken while it was loaded; empty without a trainer.
            engine: this rank's generation engine. None: it does not generate.
            ranks: all ranks that train the role or generate with it.
        """
        self._trainer = trainer
        self._engine = engine
        self._ranks = ranks
        # No version is negative, so the first sync always transfers.
        self._version = -1
        # Start of the last sync, when all ranks had joined it, in seconds since the epoch.
        self.began = 0.0
        self._required: WeightVersion | None = None
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

    def current_version(self, required: WeightVersion) -> int:
        """The engine's version of the weights, for the sequences of a call.

        Args:
            required: by the call that generates.

        Raises:
            StaleWeights: the engine has other weights, or none.
        """
        assert self._engine is not None, "a rank without generation needs no weights"
        if self._trainer is None:
            is_current = required == self._required
            expected = "those of the pass, after its updates so far"
        else:
            is_current = self._version == self._trainer.version
            expected = f"version {self._trainer.version}"
        if not is_current or self._engine.version is None:
            has_weights = self._engine.version is not None
            present = f"version {self._version}" if has_weights else "none"
            raise StaleWeights(
                f"the engine has other weights than the trainer: got {present}, allowed "
                f"{expected}; the plan lacks a reshard before this call"
            )
        return self._version

    def sync(self, required: WeightVersion) -> Statistics:
        """Copy the trainer's weights into the engine, unless it has this version. Collective.

        Args:
            required: the version that the call asks for.

        Raises:
            StaleWeights: the received weights differ from those that were sent, or the trainer has
                moved its weights to other storage.
            NotLoaded: the trainer's weights are on the host.
        """
        self._required = required
        version, any_missing = self._agree()
        self.began = time.time()
        if version == self._version and not any_missing:
            return Statistics()
        if self._trainer is not None:
            self._trainer.require_loaded()
        self._require_same_storage()
        if self._engine is not None:
            self._engine.restore()
        moved = self._transfer.run()
        self._verify(version)
        if self._engine is not None:
            self._engine.publish(version)
        self._version = version
        # Before the engine allocates its cache: both at once might not fit.
        self._transfer.release()
        moved_bytes = (float(moved.bytes_received), 1 / self._ranks.size)
        return Statistics(means={"throughput/transition_bytes": moved_bytes})

    def _agree(self) -> tuple[int, bool]:
        """Return the trainer's version, and whether any engine has no weights; equal on all
        ranks."""
        # Ranks without a trainer contribute -1; the maximum is the trainer's version.
        version = -1 if self._trainer is None else self._trainer.version
        is_missing = self._engine is not None and self._engine.version is None
        version, any_missing = self._ranks.max(torch.tensor([version, int(is_missing)])).tolist()
        return version, bool(any_missing)

    def _require_same_storage(self) -> None:
        # The transfer sends what lies in the first views, and checksums cover nothing else.
        # Compared at every sync: an engine may have reallocated in between.
        for name, now in ({} if self._trainer is None else self._trainer.views()).items():
            before = self._source.get(name, ())
            if len(now) != len(before) or not all(
                is_same_memory(one.tensor, other.tensor)
                for one, other in zip(now, before, strict=True)
            ):
                raise StaleWeights(
                    f"the trainer has moved its weights: got other storage for {name} than when "
                    "the transfer was planned, allowed the same; an engine must allocate its "
                    "memory before it gives its views"
                )

    def _verify(self, version: int) -> None:
        """Compare the checksums of sent and received weights, tensor by tensor.

        Also detects replicated weights that have diverged.
        """
        sent = tensor_checksums(self._names, self._source, self._transfer.dtypes)
        received = tensor_checksums(self._names, self._target, self._transfer.dtypes)
        # One reduction for both.
        sent, received = self._ranks.sum(torch.stack([sent, received]))
        # On either side every element of a tensor lies on the same number of ranks, so a sum over
        # all ranks is the tensor's checksum times that number of copies.
        expected, actual = sent * self._target_copies, received * self._source_copies
        different = torch.nonzero(expected != actual).flatten().tolist()
        if different:
            raise StaleWeights(
                "weights changed on their way to generation: got other checksums for "
                f"{len(different)} of {len(self._names)} tensors, the first "
                f"{self._names[different[0]]}, at version {version}; nothing was generated with "
                "them"
            )


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
