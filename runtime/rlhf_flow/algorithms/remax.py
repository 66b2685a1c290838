"""ReMax: the score of the greedy response is the baseline of its prompt's samples."""

from __future__ import annotations

from rlhf_api.spec.presets import ReMaxSettings
from rlhf_flow.algorithms.policy_gradient import REWARD, JobSettings, PolicyAlgorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import scores_column, valid_column
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.operations import AboveBaseline, BothValid, RewardsToGo

VALID = "valid"


class ReMax(PolicyAlgorithm):
    """A policy gradient with a baseline from one more response, and no critic.

    Source: Li et al., ReMax (arXiv 2310.10505), algorithm 1; HybridFlow, figure 6.

    Args:
        settings: of the manifest.
        job: other settings of the job.
    """

    def __init__(self, settings: ReMaxSettings, job: JobSettings) -> None:
        super().__init__(settings, job, VALID)
        self.advantages = (
            *self.penalty.on_tokens(scores_column(REWARD)),
            # The baseline is a score per response, so it is subtracted from the returns of tokens,
            # not from their rewards.
            RewardsToGo(),
            AboveBaseline("baseline", "has_baseline"),
            # A sample without a baseline would train with advantage 0, but count in the mean.
            BothValid(valid_column(REWARD), "has_baseline", VALID),
        )

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Generate samples and a greedy response, score both, subtract, train."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        greedy = flow.actor.generate(prompts, samples=1, greedy=True)
        scored = flow.reward.score(greedy)
        # Renamed, else a join would overwrite the scores of the samples.
        names = {scores_column(REWARD): "baseline", valid_column(REWARD): "has_baseline"}
        baseline = scored.select(*names).rename(**names)
        batch |= baseline.broadcast(batch)
        batch = self.with_log_probs(flow, batch)
        batch |= flow.compute(batch, *self.advantages)
        flow.actor.train(batch, self.loss)
