"""Losses on pairs of responses: each is called with the outputs of micro-batches that hold all
responses to their prompts, as far as these are in pairs."""

from __future__ import annotations

import torch

from rlhf_flow.losses import BradleyTerry, Dpo
from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import TokenOutputs
from rlhf_runtime.numerics.padding import pad
from rlhf_runtime.numerics.preferences import (
    Pairs,
    bradley_terry_loss,
    count_pairs,
    is_paired,
    pairs_of,
)
from rlhf_runtime.roles.sequences import as_tensor
from rlhf_runtime.roles.training import Means, MiniBatch


class Comparison:
    """The pairs of one mini-batch and what is told of them. Every rank makes it together.

    Args:
        batch: this rank's part.
        preference: the field that says who is chosen and who rejected.
        parallel: the ranks that share the batch.
        role: that is trained.
        means: gets the loss, how often the chosen response has the higher score, and by how much.
    """

    def __init__(
        self,
        batch: MiniBatch,
        preference: str,
        parallel: ParallelContext,
        role: str,
        means: Means,
    ) -> None:
        self._groups = torch.tensor(batch.groups)
        self._preference = as_tensor(batch.columns[preference])
        own = torch.tensor([count_pairs(self._groups, self._preference)])
        self._num_pairs = int(parallel.sum(own)[0])
        self._role = role
        self._means = means
        means.add(f"{role}/loss", 0.0, batch.share)

    def rows(self) -> Rows:
        """Those that are in pairs."""
        paired: Rows = is_paired(self._groups, self._preference).nonzero()[:, 0].numpy()
        return paired

    def pairs(self, part: MicroBatch, device: torch.device) -> Pairs:
        """Those of a micro-batch, as positions among its responses."""
        found = pairs_of(self._groups[part.rows], self._preference[part.rows])
        return Pairs(*(positions.to(device) for positions in found))

    def share(self, margins: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
        """What some pairs are of the mini-batch's loss."""
        losses = bradley_terry_loss(margins, label_smoothing)
        share = losses.sum() / max(1, self._num_pairs)
        self._means.add(f"{self._role}/loss", share, 0.0)
        self.note("accuracy", (margins > 0).float())
        self.note("margin", margins)
        return share

    def note(self, name: str, values: torch.Tensor) -> None:
        """Add a number of each of some pairs to a mean."""
        self._means.add(f"{self._role}/{name}", values.double().sum(), len(values))


class ScoreTerms:
    """Scores held against preferences: called with the score of each response."""

    def __init__(
        self,
        batch: MiniBatch,
        loss: BradleyTerry,
        parallel: ParallelContext,
        role: str,
        means: Means,
    ) -> None:
        self._compared = Comparison(batch, loss.preference, parallel, role, means)

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        scores = outputs.values
        pairs = self._compared.pairs(part, scores.device)
        return self._compared.share(scores[pairs.chosen] - scores[pairs.rejected])


class DpoTerms:
    """Implicit rewards held against preferences: called with log-probabilities."""

    def __init__(
        self,
        batch: MiniBatch,
        loss: Dpo,
        parallel: ParallelContext,
        role: str,
        means: Means,
    ) -> None:
        self._compared = Comparison(batch, loss.preference, parallel, role, means)
        self._reference = as_tensor(batch.columns[loss.reference_log_probs])
        self._loss = loss

    def rows(self) -> Rows:
        """Those that are in pairs: no other has a gradient, or is told about."""
        return self._compared.rows()

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        device = outputs.values.device
        ratios = outputs.values - self._reference[part.tokens].to(device)
        padded, _ = pad(ratios, part.response_lengths)
        rewards = self._loss.beta * padded.sum(dim=1)
        pairs = self._compared.pairs(part, device)
        chosen, rejected = rewards[pairs.chosen], rewards[pairs.rejected]
        self._compared.note("chosen_reward", chosen)
        self._compared.note("rejected_reward", rejected)
        return self._compared.share(chosen - rejected, self._loss.label_smoothing)
