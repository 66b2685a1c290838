"""The reward of a response: the weighted sum of all verifiers, scored side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rlhf_api.rewards import OnRewardError, RewardSpec
from rlhf_runtime.rewards.errors import InvalidReward
from rlhf_runtime.rewards.pool import VerifierPool
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores


@dataclass(frozen=True, slots=True)
class ScoredSamples:
    """Rewards of some samples.

    values: float32, shape [samples]; the weighted sum, 0 where not valid.
    valid: bool, shape [samples]; False for samples to leave out: a verifier whose onError is
        exclude could not score them.
    metrics: reward/<name>, the mean of a verifier over the samples that it scored; reward/mean and
        reward/std over the valid samples (without Bessel's correction); score/invalid, samples
        that some verifier could not score, left out or not; score/excluded, samples left out;
        score/<fault>, how often a verifier failed that way. A mean of no samples is left out.
    errors: first error of each verifier that had one, by the reward's name.
    """

    values: NDArray[np.float32]
    valid: NDArray[np.bool_]
    metrics: Mapping[str, float]
    errors: Mapping[str, str]


class Scorer:
    """All verifiers of a job. Use it as a context manager, or close it."""

    def __init__(self, rewards: Sequence[RewardSpec]) -> None:
        """Start the processes of all verifiers and wait until all have loaded their functions.

        Raises:
            InvalidReward: some cannot be loaded; the message names all of them.
        """
        self._rewards = tuple(rewards)
        self._pools = [VerifierPool(reward) for reward in rewards]
        try:
            _wait_until_ready(self._pools)
        except BaseException:
            self.close()
            raise

    def score(self, samples: Sequence[Sample]) -> ScoredSamples:
        """Score samples with every verifier at once.

        Raises:
            RewardError: a verifier failed and its onError is fail.
        """
        requests = [pool.submit(samples) for pool in self._pools]
        wait(requests)
        return combine(self._rewards, [request.result() for request in requests], len(samples))

    def close(self) -> None:
        """End all processes."""
        for pool in self._pools:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def combine(
    rewards: Sequence[RewardSpec], scores: Sequence[Scores], num_samples: int
) -> ScoredSamples:
    """The weighted sum of what the verifiers said, and its metrics. Pure."""
    total = np.zeros(num_samples, dtype=np.float64)
    valid = np.ones(num_samples, dtype=np.bool_)
    scored = np.ones(num_samples, dtype=np.bool_)
    faults: Counter[str] = Counter()
    metrics: dict[str, float] = {}
    for reward, score in zip(rewards, scores, strict=True):
        total += reward.weight * score.values.astype(np.float64)
        scored &= score.valid
        if reward.function.on_error is OnRewardError.EXCLUDE:
            valid &= score.valid
        faults.update(score.errors)
        if score.valid.any():
            metrics[f"reward/{reward.name}"] = float(score.values[score.valid].mean(dtype=float))
    values = np.where(valid, total, 0.0).astype(np.float32)
    if valid.any():
        metrics["reward/mean"] = float(values[valid].mean(dtype=float))
        metrics["reward/std"] = float(values[valid].std(dtype=float))
    metrics["score/invalid"] = float(num_samples - scored.sum())
    metrics["score/excluded"] = float(num_samples - valid.sum())
    metrics.update({f"score/{fault}": float(count) for fault, count in sorted(faults.items())})
    errors = {
        reward.name: score.first_error
        for reward, score in zip(rewards, scores, strict=True)
        if score.first_error is not None
    }
    return ScoredSamples(values, valid, metrics, errors)


def _wait_until_ready(pools: Sequence[VerifierPool]) -> None:
    problems = []
    for pool in pools:
        try:
            pool.wait_until_ready()
        except InvalidReward as problem:
            problems.append(str(problem))
    if problems:
        raise InvalidReward("\n".join(problems))
