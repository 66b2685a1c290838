"""Losses on pairs of responses: each is called with the outputs of micro-batches, which hold all
responses to their prompts, as far as these are in pairs.

Where these are too many tokens for a micro-batch they are split over several, which run twice:
first forward only, for the scores of all of them; then with the loss's slopes at these scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from rlhf_flow.step.losses import BradleyTerry, Dpo
from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.devices import to_device
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import TokenOutputs
from rlhf_runtime.numerics.padding import pad
from rlhf_runtime.numerics.preferences import (
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
        label_smoothing: the probability that a pair is the other way round.
        tells_scores: whether the scores of chosen and rejected responses are told as rewards.
    """

    def __init__(
        self,
        batch: MiniBatch,
        preference: str,
        parallel: ParallelContext,
        role: str,
        means: Means,
        label_smoothing: float = 0.0,
        tells_scores: bool = False,
    ) -> None:
        self._groups = torch.tensor(batch.groups)
        self._preference = as_tensor(batch.columns[preference])
        own = torch.tensor([count_pairs(self._groups, self._preference)])
        self._num_pairs = int(parallel.sum(own)[0])
        self._role = role
        self._means = means
        self._label_smoothing = label_smoothing
        self._tells_scores = tells_scores
        self._is_split = torch.zeros(len(self._groups), dtype=torch.bool)
        self._scores = torch.zeros(len(self._groups))
        means.add(f"{role}/loss", 0.0, batch.share)

    def paired_rows(self) -> Rows:
        """Those that are in pairs."""
        paired: Rows = is_paired(self._groups, self._preference).nonzero()[:, 0].numpy()
        return paired

    def split(self, parts: Sequence[MicroBatch]) -> None:
        """Say which micro-batches lack some of the responses to their prompts. They run without
        gradients before any runs with them."""
        for part in parts:
            self._is_split[part.rows] = True

    def share(self, scores: torch.Tensor, part: MicroBatch) -> torch.Tensor:
        """What a micro-batch is of the mini-batch's loss; of a split one something with the same
        gradient.

        Args:
            scores: float32[responses], differentiable.
            part: the micro-batch.
        """
        if not self._is_split[part.rows].any():
            return self._share(scores, part.rows)
        if torch.is_grad_enabled():
            return (to_device(self._slopes[part.rows], scores.device) * scores).sum()
        self._scores[part.rows] = scores.cpu()
        return scores.sum()

    @cached_property
    def _slopes(self) -> torch.Tensor:
        """float32[rows]: the loss's derivatives by the scores of split rows, when all are known."""
        rows = self._is_split.nonzero()[:, 0]
        scores = self._scores[rows].requires_grad_()
        (slopes,) = torch.autograd.grad(self._share(scores, rows), scores)
        return torch.zeros_like(self._scores).index_put((rows,), slopes)

    def _share(self, scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The loss of the pairs among some rows, which is told, too."""
        found = pairs_of(self._groups[rows], self._preference[rows])
        chosen, rejected = (scores[to_device(positions, scores.device)] for positions in found)
        if self._tells_scores:
            self._note("chosen_reward", chosen)
            self._note("rejected_reward", rejected)
        margins = chosen - rejected
        losses = bradley_terry_loss(margins, self._label_smoothing)
        share = losses.sum() / max(1, self._num_pairs)
        self._means.add(f"{self._role}/loss", share, 0.0)
        self._note("accuracy", (margins > 0).float())
        self._note("margin", margins)
        return share

    def _note(self, name: str, values: torch.Tensor) -> None:
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
        self.compared = Comparison(batch, loss.preference, parallel, role, means)

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        return self.compared.share(outputs.values, part)


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
        self.compared = Comparison(
            batch,
            loss.preference,
            parallel,
            role,
            means,
            loss.label_smoothing,
            tells_scores=True,
        )
        self._reference = as_tensor(batch.columns[loss.reference_log_probs])
        self._beta = loss.beta

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """This micro-batch's share of the mini-batch's loss."""
        ratios = outputs.values - to_device(self._reference[part.tokens], outputs.values.device)
        padded, _ = pad(ratios, part.response_lengths)
        return self.compared.share(self._beta * padded.sum(dim=1), part)
