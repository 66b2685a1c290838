"""Scores that environments of conversations have returned."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards.messages import check_scores
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import OnScore, Scores, Tally


class EnvironmentScorer:
    """Reads the rewards that conversations bring; a `RewardScorer`. It abstains without one."""

    def __init__(self, reward: RewardSpec) -> None:
        assert reward.environment is not None
        self._name, self._parts = reward.name, reward.environment.parts

    @property
    def title(self) -> str:
        """Name of the reward in messages."""
        return f"the reward {self._name} (rollout.environment)"

    def wait_until_ready(self) -> str | None:
        """Return no metric: environments declare none."""
        return None

    def submit(self, samples: Sequence[Sample], on_score: OnScore | None = None) -> Future[Scores]:
        """Score samples; the result is there on return.

        on_score: called with each final score.
        """
        values = [sample.environment_reward for sample in samples]
        tally = Tally(len(samples), on_score)
        tally.add(0, len(samples), check_scores(values, len(samples), self._parts))
        scores: Future[Scores] = Future()
        scores.set_result(tally.scores())
        return scores

    def close(self) -> None:
        """Do nothing: it has no processes."""
