"""Policy and value losses written once more: full batch, one row at a time, plain torch. Tokens
that a response mask leaves out are dropped from each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from rlhf_api.spec.policy_loss import KlEstimator, LossAggregation, PolicyObjective
from rlhf_flow.step.losses import ClippedLoss, ValueLoss
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings

Rows = Sequence[int]
RowLosses = Callable[[int], torch.Tensor]
"""Token losses of a row."""


@dataclass
class Plain:
    """A Hugging Face model, trained as the formula says."""

    module: nn.Module
    columns: Mapping[str, Column]
    temperature: float
    fixed_length: int
    optimizer: OptimizerSettings
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    num_left_out: int = 0
    """Updates in which nothing counted."""

    def __post_init__(self) -> None:
        self._adam = torch.optim.AdamW(
            [
                {"params": [p for p in self.module.parameters() if p.ndim > 1]},
                {
                    "params": [p for p in self.module.parameters() if p.ndim == 1],
                    "weight_decay": 0.0,
                },
            ],
            lr=self.optimizer.learning_rate,
            betas=(self.optimizer.beta1, self.optimizer.beta2),
            eps=self.optimizer.epsilon,
            weight_decay=self.optimizer.weight_decay,
        )

    def whole(self, name: str, row: int) -> torch.Tensor:
        return torch.tensor(self.columns[name].take(np.array([row])).values)

    def own(self, row: int) -> torch.Tensor:
        """Which tokens of a row's response count."""
        if "response_mask" in self.columns:
            return self.whole("response_mask", row) == 1
        return torch.ones(len(self.whole("response_tokens", row)), dtype=torch.bool)

    def row(self, name: str, row: int) -> torch.Tensor:
        """Numbers of the tokens that count."""
        return self.whole(name, row)[self.own(row)]

    def all_outputs(self, row: int) -> torch.Tensor:
        """What the model says at the last token of a row's prompt and at each of its response."""
        prompt = self.whole("prompt_tokens", row).long()
        response = self.whole("response_tokens", row).long()
        logits: torch.Tensor = self.module(torch.cat([prompt, response])[None]).logits[0]
        return logits[len(prompt) - 1 :]

    def outputs(self, row: int) -> torch.Tensor:
        """What the model says before each response token of a row that counts."""
        return self.all_outputs(row)[:-1][self.own(row)]

    def margin(self, chosen: int, rejected: int) -> torch.Tensor:
        """The score of one row's response over that of another's."""
        return self.all_outputs(chosen)[-1, 0] - self.all_outputs(rejected)[-1, 0]

    def implicit_reward(self, row: int, beta: float) -> torch.Tensor:
        """What DPO holds to be the reward of a row's response."""
        reference = self.row("reference_log_probs", row)
        return beta * (self.log_probs(row).sum() - reference.sum())

    def log_probs(self, row: int, temperature: float | None = None) -> torch.Tensor:
        """Of the response tokens of a row that count."""
        response = self.row("response_tokens", row).long()
        scaled = self.outputs(row) / (self.temperature if temperature is None else temperature)
        return scaled.log_softmax(-1).gather(1, response[:, None])[:, 0]

    def entropy(self, row: int) -> torch.Tensor:
        log_probs = (self.outputs(row) / self.temperature).log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def policy_losses(self, loss: ClippedLoss, old: str, with_reference: bool) -> RowLosses:
        def of_row(row: int) -> torch.Tensor:
            log_probs, advantages = self.log_probs(row), self.row("advantages", row)
            ratios = self.ratios(row, loss, old)
            bounded = ratios.clamp(1 - loss.clip_range, 1 + loss.clip_range_high)
            losses = -torch.minimum(ratios * advantages, bounded * advantages)
            if loss.objective is PolicyObjective.CISPO:
                losses = -bounded.detach() * advantages * log_probs
            if loss.dual_clip is not None:
                ceiling = -loss.dual_clip * advantages
                losses = torch.where(advantages < 0, torch.minimum(losses, ceiling), losses)
            if old != "rollout_log_probs":
                corrections = (self.row(old, row) - self.row("rollout_log_probs", row)).exp()
                losses = losses * corrections.clamp(max=loss.importance_cap)
            losses = losses - loss.entropy_coefficient * self.entropy(row)
            if with_reference:
                assert loss.kl_estimator is not None
                losses = losses + loss.kl_coefficient * self.kl(row, loss.kl_estimator, old)
            return losses

        return of_row

    def ratios(self, row: int, loss: ClippedLoss, old: str) -> torch.Tensor:
        """Of each token of a row, or of the row."""
        differences = self.log_probs(row) - self.row(old, row)
        if loss.objective is PolicyObjective.GSPO:
            return differences.mean().exp() * torch.ones_like(differences)
        return differences.exp()

    def agrees(self, row: int, threshold: float | None) -> bool:
        """Whether both engines take a row to be about as likely."""
        difference = self.row("actor_log_probs", row) - self.row("rollout_log_probs", row)
        if threshold is None or not len(difference):
            return True
        return 1 / threshold <= float(difference.mean().exp()) <= threshold

    def kl(self, row: int, estimator: KlEstimator, old: str) -> torch.Tensor:
        difference = self.log_probs(row) - self.row("reference_log_probs", row)
        if estimator is KlEstimator.K1:
            return difference
        if estimator is KlEstimator.K2:
            return difference**2 / 2
        estimates = (-difference).exp() - 1 + difference
        if estimator is KlEstimator.K3_CORRECTED:
            estimates = (self.log_probs(row) - self.row(old, row)).exp() * estimates
        return estimates

    def value_losses(self, loss: ValueLoss) -> RowLosses:
        def of_row(row: int) -> torch.Tensor:
            values, returns = self.outputs(row)[:, 0], self.row("returns", row)
            errors = (values - returns) ** 2
            if loss.clip_range is not None:
                old = self.row("critic_values", row)
                near = torch.minimum(
                    torch.maximum(values, old - loss.clip_range), old + loss.clip_range
                )
                errors = torch.maximum(errors, (near - returns) ** 2)
            return 0.5 * errors

        return of_row

    def supervised_losses(self, row: int) -> torch.Tensor:
        return -self.log_probs(row, temperature=1.0)

    def update(self, rows: Rows, row_losses: RowLosses, mode: LossAggregation) -> None:
        """One optimizer step on the rows that count."""
        losses = [of_row for of_row in map(row_losses, rows) if len(of_row)]
        if not losses:
            self.step(self.nothing())
            return
        match mode:
            case LossAggregation.TOKEN_MEAN:
                loss = torch.cat(losses).mean()
            case LossAggregation.SEQUENCE_MEAN_TOKEN_SUM:
                loss = torch.stack([of_row.sum() for of_row in losses]).mean()
            case LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN:
                loss = torch.stack([of_row.mean() for of_row in losses]).mean()
            case LossAggregation.SEQUENCE_MEAN_FIXED_LENGTH:
                loss = torch.stack([of_row.sum() / self.fixed_length for of_row in losses]).mean()
        self.step(loss)

    def leave_out(self) -> None:
        """No optimizer step: weights and Adam's state stay."""
        self.losses.append(0.0)
        self.num_left_out += 1

    def nothing(self) -> torch.Tensor:
        """The loss of no token: 0, with gradients of 0."""
        return torch.stack([0 * each.sum() for each in self.module.parameters()]).sum()

    def step(self, loss: torch.Tensor) -> None:
        """One optimizer step."""
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.optimizer.gradient_clip)
        self._adam.step()
        self._adam.zero_grad()
        self.losses.append(float(loss.detach()))
        self.norms.append(float(norm))
