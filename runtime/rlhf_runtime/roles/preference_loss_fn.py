"""Losses on pairs of responses, called with the outputs of micro-batches.

A micro-batch holds all paired responses to its prompts. Where these are too many tokens for one
micro-batch they are split over several, which run twice: first forward only, to collect all scores;
then with the loss's gradients in these scores.
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
    list_pairs,
)
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import MiniBatch
from rlhf_runtime.roles.sequences import as_tensor


class PairComparison:
    """The pairs of one mini-batch, their loss and their metrics. Collective.

    Args:
        batch: this rank's part.
        preference: the field that marks chosen and rejected rows.
        parallel: the ranks that share the batch.
        role: the trained role.
        metrics: gets the loss, the share of pairs whose chosen response has the higher score, and
            by how much.
        label_smoothing: the probability that a pair is the other way round.
        records_rewards: whether the scores of chosen and rejected responses are metrics, too.
    """

    def __init__(
        self,
        batch: MiniBatch,
        preference: str,
        parallel: ParallelContext,
        role: str,
        metrics: MetricAccumulator,
        label_smoothing: float = 0.0,
        records_rewards: bool = False,
    ) -> None:
        self._groups = torch.tensor(batch.groups)
        self._preference = as_tensor(batch.columns[preference])
        # The loss averages over the pairs of all ranks.
        own = torch.tensor([count_pairs(self._groups, self._preference)])
        self._num_pairs = int(parallel.sum(own)[0])
        self._role = role
        self._metrics = metrics
        self._label_smoothing = label_smoothing
        self._records_rewards = records_rewards
        self._is_split = torch.zeros(len(self._groups), dtype=torch.bool)
        self._scores = torch.zeros(len(self._groups))
        metrics.record_mean(f"{role}/loss", 0.0, batch.share)

    def paired_rows(self) -> Rows:
        """Return the rows that are in pairs."""
        paired: Rows = is_paired(self._groups, self._preference).nonzero()[:, 0].numpy()
        return paired

    def mark_split(self, parts: Sequence[MicroBatch]) -> None:
        """Mark micro-batches that lack some of their prompts' responses. All of them must run
        without gradients before any runs with them."""
        for part in parts:
            self._is_split[part.rows] = True

    def share(self, scores: torch.Tensor, part: MicroBatch) -> torch.Tensor:
        """Return a micro-batch's share of the mini-batch's loss.

        A split micro-batch gets another number with the same gradient.

        Args:
            scores: float32[responses], differentiable.
            part: the micro-batch.
        """
        if not self._is_split[part.rows].any():
            return self._share(scores, part.rows)
        # Second pass: a linear function of the scores, with the loss's gradient.
        if torch.is_grad_enabled():
            return (to_device(self._slopes[part.rows], scores.device) * scores).sum()
        # First pass: collect the scores; nothing uses the returned number.
        self._scores[part.rows] = scores.cpu()
        return scores.sum()

    @cached_property
    def _slopes(self) -> torch.Tensor:
        """float32[rows]: the loss's derivatives in the scores of split rows."""
        # Computed on first use, when the forward passes have filled in all scores.
        rows = self._is_split.nonzero()[:, 0]
        scores = self._scores[rows].requires_grad_()
        (slopes,) = torch.autograd.grad(self._share(scores, rows), scores)
        return torch.zeros_like(self._scores).index_put((rows,), slopes)

    def _share(self, scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Compute and record the loss of the pairs among some rows."""
        pairs = list_pairs(self._groups[rows], self._preference[rows])
        chosen, rejected = (scores[to_device(positions, scores.device)] for positions in pairs)
        if self._records_rewards:
            self._record("chosen_reward", chosen)
            self._record("rejected_reward", rejected)
        margins = chosen - rejected
        losses = bradley_terry_loss(margins, self._label_smoothing)
        share = losses.sum() / max(1, self._num_pairs)
        self._metrics.record_mean(f"{self._role}/loss", share, 0.0)
        self._record("accuracy", (margins > 0).float())
        self._record("margin", margins)
        return share

    def _record(self, name: str, values: torch.Tensor) -> None:
        self._metrics.record_mean(f"{self._role}/{name}", values.double().sum(), len(values))


class BradleyTerryLossFn:
    """Compares scores with preferences: called with the score of each response."""

    def __init__(
        self,
        batch: MiniBatch,
        loss: BradleyTerry,
        parallel: ParallelContext,
        role: str,
        metrics: MetricAccumulator,
    ) -> None:
        self.comparison = PairComparison(batch, loss.preference, parallel, role, metrics)

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """Return this micro-batch's share of the mini-batch's loss."""
        return self.comparison.share(outputs.values, part)


class DpoLossFn:
    """Compares implicit rewards with preferences: called with log-probabilities."""

    def __init__(
        self,
        batch: MiniBatch,
        loss: Dpo,
        parallel: ParallelContext,
        role: str,
        metrics: MetricAccumulator,
    ) -> None:
        self.comparison = PairComparison(
            batch,
            loss.preference,
            parallel,
            role,
            metrics,
            loss.label_smoothing,
            records_rewards=True,
        )
        self._reference = as_tensor(batch.columns[loss.reference_log_probs])
        self._beta = loss.beta

    def __call__(self, outputs: TokenOutputs, part: MicroBatch) -> torch.Tensor:
        """Return this micro-batch's share of the mini-batch's loss."""
        # DPO's implicit reward: beta (log pi - log pi_ref), summed over the response.
        ratios = outputs.values - to_device(self._reference[part.tokens], outputs.values.device)
        padded, _ = pad(ratios, part.response_lengths)
        return self.comparison.share(self._beta * padded.sum(dim=1), part)
