"""GRPO: advantages relative to the other samples of the same prompt; no critic."""

from __future__ import annotations

from typing import ClassVar

from rlhf_api.spec.algorithm import GrpoSettings
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.batches import BatchValue
from rlhf_flow.fields import ROLLOUT_LOG_PROBS, log_probs_of, scores_of, valid_of
from rlhf_flow.flow import Flow
from rlhf_flow.losses import ClippedLoss
from rlhf_flow.operations import GroupAdvantages
from rlhf_flow.roles import LanguageModel, RewardSource, Roles


class Grpo(Algorithm):
    """Group relative policy optimization; without `normalizeByStd` Dr.GRPO.

    With a single update per step the policy that trains is the one that sampled, so the generation
    engine's log-probabilities serve as the old ones, where both engines agree: in float32. Else the
    ratio must compare numbers of one engine, and the actor computes its own before the first
    update.

    Source: DeepSeekMath, section 4.1.

    Args:
        settings: of the manifest.
        needs_old_log_probs: whether the generation engine's log-probabilities cannot serve as the
            old ones.
    """

    policy: ClassVar = "actor"
    """The role that samples and is trained."""

    def __init__(self, settings: GrpoSettings, needs_old_log_probs: bool) -> None:
        self.settings = settings
        self.uses_reference = settings.kl_coefficient > 0
        self.uses_old_log_probs = needs_old_log_probs
        old = log_probs_of("actor") if self.uses_old_log_probs else ROLLOUT_LOG_PROBS
        self.loss = ClippedLoss.from_settings(
            settings,
            valid=valid_of("reward"),
            old_log_probs=old,
            reference_log_probs=log_probs_of("reference") if self.uses_reference else None,
        )
        self.advantages = GroupAdvantages(
            scores_of("reward"), valid_of("reward"), settings.normalize_by_std
        )

    def roles(self) -> Roles:
        """Actor and reward, and a reference where there is a KL penalty."""
        reference = {"reference": LanguageModel} if self.uses_reference else {}
        return {"actor": LanguageModel, **reference, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Answer, score, compare within groups, train."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        if self.uses_reference:
            batch |= flow.reference.log_probs(batch)
        if self.uses_old_log_probs:
            batch |= flow.actor.log_probs(batch)
        batch |= flow.compute(batch, self.advantages)
        flow.actor.train(batch, self.loss)
