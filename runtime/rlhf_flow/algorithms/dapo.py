"""DAPO: GRPO on prompts with different scores, sampled until there are enough of them."""

from __future__ import annotations

from rlhf_api.spec.presets import DapoSettings
from rlhf_flow.algorithms.policy_gradient import REWARD, JobSettings, PolicyGradient, estimator
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import scores_column, valid_column
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.operations import EnoughGroups, MixedGroups, OverlongPenalty

MIXED = "mixed"


class Dapo(PolicyGradient):
    """Dynamic sampling, a higher upper clip and soft overlong punishment.

    Source: Yu et al., DAPO (arXiv 2503.14476), section 3.

    Args:
        settings: of the manifest.
        job: other settings of the job.
    """

    def __init__(self, settings: DapoSettings, job: JobSettings) -> None:
        # The loss counts only rows of mixed groups: in the others all advantages are 0.
        super().__init__(settings, job, MIXED)
        scores, valid = scores_column(REWARD), valid_column(REWARD)
        # By raw scores: different lengths alone must not make a group count as mixed.
        self.mixed = MixedGroups(scores, valid, MIXED)
        self.enough = EnoughGroups(MIXED, job.prompts_per_step)
        self.max_rounds = settings.max_rounds
        self.expected_rounds = settings.expected_rounds
        if settings.overlong_tokens:
            longest = job.max_response_tokens
            # The operation refuses a margin longer than the longest response.
            margin = min(settings.overlong_tokens, longest)
            shaped = OverlongPenalty(scores, longest, margin, settings.overlong_penalty)
            # Replaces the advantages of the base class, which are of raw scores.
            self.advantages = (shaped, *estimator(settings, shaped.shaped, MIXED, self.penalty))

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Generate and score until enough groups are mixed, estimate advantages, train."""

        def sample(fresh: BatchValue) -> BatchValue:
            batch: BatchValue = flow.actor.generate(fresh)
            batch |= flow.reward.score(batch)
            return batch | flow.compute(batch, self.mixed)

        batch = flow.repeat(
            sample,
            until=self.enough,
            max_rounds=self.max_rounds,
            expected_rounds=self.expected_rounds,
        )
        # Outside of the rounds: one pass over all rows, with the weights that sampled them.
        batch = self.with_log_probs(flow, batch)
        batch |= flow.compute(batch, *self.advantages)
        flow.actor.train(batch, self.loss)
