"""What a policy's training reports beside its loss, computed row by row."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rlhf_api.spec.policy_loss import PolicyObjective
from rlhf_flow.step.losses import ClippedLoss

from .plain_losses import Plain
from .scenario_tools import close


class Notes:
    """Means over the tokens that count, of every update."""

    def __init__(self, reference: Plain, loss: ClippedLoss, with_reference: bool) -> None:
        self._reference, self._loss, self._with_reference = reference, loss, with_reference
        self._values: dict[str, list[torch.Tensor]] = {}
        self._largest: list[float] = []
        self._smallest: list[float] = []
        self._left_out: set[int] = set()

    def leave_out(self, rows: list[int]) -> None:
        """An update that was left out ran no forward pass on these rows."""
        self._left_out.update(rows)

    @torch.no_grad()
    def take(self, rows: list[int]) -> None:
        at, loss = self._reference, self._loss
        for row in rows:
            if not at.own(row).any():
                continue
            advantages = at.row("advantages", row)
            ratios = at.ratios(row, loss, "actor_log_probs")
            is_cispo = loss.objective is PolicyObjective.CISPO
            over = ((advantages > 0) | is_cispo) & (ratios > 1 + loss.clip_range_high)
            under = ((advantages < 0) | is_cispo) & (ratios < 1 - loss.clip_range)
            dual = (
                torch.zeros_like(over)
                if loss.dual_clip is None
                else (advantages < 0) & (ratios > loss.dual_clip)
            )
            self._add("actor/clip_fraction", (over | under | dual).float())
            self._add("actor/clip_fraction_low", under.float())
            self._add("actor/clip_fraction_high", over.float())
            self._largest.append(float(ratios.max()))
            self._smallest.append(float(ratios.min()))
            mismatch = at.row("rollout_log_probs", row) - at.row("actor_log_probs", row)
            self._add("actor/mismatch_kl", (-mismatch).exp() - 1 + mismatch)
            self._add("actor/entropy", at.entropy(row))
            difference = (at.row("actor_log_probs", row) - at.row("rollout_log_probs", row)).abs()
            self._add("actor/log_prob_difference_mean", difference)
            if self._with_reference:
                assert loss.kl_estimator is not None
                self._add("actor/kl", at.kl(row, loss.kl_estimator, loss.old_log_probs))

    def _add(self, name: str, values: torch.Tensor) -> None:
        self._values.setdefault(name, []).append(values)

    def compare(self, metrics: Mapping[str, float]) -> None:
        assert ("actor/kl" in metrics) == ("actor/kl" in self._values)
        self._compare_maxima(metrics)
        for name, values in self._values.items():
            close(metrics[name], float(torch.cat(values).double().mean()), name)

    def _compare_maxima(self, metrics: Mapping[str, float]) -> None:
        """Compare the metrics that are maxima; there are none without tokens."""
        expected = {
            "actor/ratio_max": self._largest,
            "actor/inverse_ratio_max": [1 / ratio for ratio in self._smallest],
            "actor/log_prob_difference_max": self._distances(),
        }
        for name, values in expected.items():
            assert (name in metrics) == bool(values), name
            if values:
                close(metrics[name], max(values), name)

    def _distances(self) -> list[float]:
        """How far the engines are apart on every token, also of rows that do not count."""
        num_rows = self._reference.columns["response_tokens"].num_rows
        rows = [row for row in range(num_rows) if row not in self._left_out]
        return [
            abs(distance)
            for row in rows
            for distance in (
                self._reference.row("actor_log_probs", row)
                - self._reference.row("rollout_log_probs", row)
            ).tolist()
        ]
