"""GRPO: advantages relative to the other samples of the same prompt; no critic."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import RoleKind
from rlhf_api.spec.algorithm import GrpoSettings
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.fields import ROLLOUT_LOG_PROBS, log_probs_of, scores_of, valid_of
from rlhf_flow.flow import BatchValue, Flow
from rlhf_flow.losses import ClippedLoss
from rlhf_flow.operations import Operation, group_advantages


class Grpo(Algorithm):
    """Group relative policy optimization; without `normalizeByStd` Dr.GRPO.

    With a single update per step the policy that trains is the one that sampled, so the generation
    engine's log-probabilities serve as the old ones. With several updates the ratio must compare
    numbers of one engine, and the actor computes its own before the first.

    Source: DeepSeekMath, section 4.1.

    Args:
        settings: of the manifest.
        updates_per_step: optimizer steps on one batch of rollouts.
    """

    def __init__(self, settings: GrpoSettings, updates_per_step: int) -> None:
        self.settings = settings
        self.uses_reference = settings.kl_coefficient > 0
        self.uses_old_log_probs = updates_per_step > 1
        old = log_probs_of("actor") if self.uses_old_log_probs else ROLLOUT_LOG_PROBS
        self.loss = ClippedLoss.from_settings(
            settings,
            valid=valid_of("reward"),
            old_log_probs=old,
            reference_log_probs=log_probs_of("reference") if self.uses_reference else None,
        )

    def roles(self) -> Mapping[str, RoleKind]:
        """Actor and reward, and a reference where there is a KL penalty."""
        reference = {"reference": RoleKind.FROZEN_POLICY} if self.uses_reference else {}
        return {"actor": RoleKind.POLICY, **reference, "reward": RoleKind.REWARD}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Answer, score, compare within groups, train."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        if self.uses_reference:
            batch |= flow.reference.log_probs(batch)
        if self.uses_old_log_probs:
            batch |= flow.actor.log_probs(batch)
        batch |= flow.compute(batch, self._advantages())
        flow.actor.train(batch, self.loss)

    def _advantages(self) -> Operation:
        by_std = self.settings.normalize_by_std
        return group_advantages(scores_of("reward"), valid_of("reward"), by_std)
