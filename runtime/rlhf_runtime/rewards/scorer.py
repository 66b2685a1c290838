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

from rlhf_api.spec.rewards import OnRewardError, RewardSpec
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.rewards.errors import InvalidReward, RewardError
from rlhf_runtime.rewards.failures import FailedSamples, Failure, NamesOf, numbered
from rlhf_runtime.rewards.http_scorer import HTTPScorer
from rlhf_runtime.rewards.pool import VerifierPool
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores
from rlhf_runtime.telemetry.spread import Spread


@dataclass(frozen=True, slots=True)
class ScoredSamples:
    """Rewards of some samples.

    values: float32, shape [samples]; the weighted sum, 0 where not valid.
    valid: bool, shape [samples]; False for samples to leave out: a verifier whose onError is
        exclude could not score them.
    terms: what each verifier said, by the reward's name, float32, shape [samples]; 0 where it could
        not score.
    means: by metric a sum and a number of samples: <role>/<name>, of a verifier over the samples
        that it scored; <role>/mean over the valid samples, unless models add to the sum.
    spreads: <role>/std, of the valid samples, under the same condition.
    counts: score/invalid, samples that some verifier could not score, left out or not;
        score/excluded, samples left out; score/<fault>, how often a verifier failed that way;
        score/rescored, how often a sample was scored again alone, since its batch failed.
    failures: the foremost of each verifier that had some, by the reward's name.
    """

    values: NDArray[np.float32]
    valid: NDArray[np.bool_]
    terms: Mapping[str, NDArray[np.float32]]
    means: Mapping[str, tuple[float, float]]
    spreads: Mapping[str, Spread]
    counts: Mapping[str, float]
    failures: Mapping[str, tuple[Failure, ...]]


class Scorer:
    """All verifiers and services of a role. Use it as a context manager, or close it."""

    def __init__(self, rewards: Sequence[RewardSpec]) -> None:
        """Start the processes of all verifiers and wait until all have loaded their functions.

        Args:
            rewards: of the role; those of models are left to the ranks.

        Raises:
            InvalidReward: some cannot be loaded; the message names all of them.
        """
        self._rewards = tuple(reward for reward in rewards if reward.model is None)
        self._is_whole = len(self._rewards) == len(rewards)
        self._pools = [_started(reward) for reward in self._rewards]
        try:
            metrics = _wait_until_ready(self._pools)
        except BaseException:
            self.close()
            raise
        named = zip(self._rewards, metrics, strict=True)
        self.measured = {reward.name: metric for reward, metric in named if metric is not None}
        """The metrics that verifiers declare, by the reward's name."""

    def score(self, samples: Sequence[Sample], names_of: NamesOf = numbered) -> ScoredSamples:
        """Score samples with every verifier at once.

        names_of: what a person finds samples by, from their numbers. It may take its time: it is
            asked once, for the failures that are told, when all is scored.

        Raises:
            RewardError: a verifier failed and its onError is fail.
        """
        requests = [pool.submit(samples) for pool in self._pools]
        wait(requests)
        scores = [request.result() for request in requests]
        scored = combine(self._rewards, scores, len(samples), self._is_whole, names_of)
        for reward, pool, one in zip(self._rewards, self._pools, scores, strict=True):
            if one.errors and reward.on_error is OnRewardError.FAIL:
                which = "service or its url" if reward.http else "function or the row"
                raise RewardError(
                    f"{pool.title} failed and onError is Fail: {scored.failures[reward.name][0]}\n"
                    f"correct the {which}, or set onError to Exclude or Zero"
                )
        return scored

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


def scorers(rewards: Sequence[RewardSpec], host: Slice) -> dict[str, Scorer]:
    """Of each role its verifiers, started.

    Args:
        rewards: of the job.
        host: which of the job's hosts starts them; they divide the requests to a service.

    Raises:
        InvalidReward: some cannot be loaded.
    """
    made: dict[str, Scorer] = {}
    own = [of_host(reward, host) for reward in rewards]
    try:
        for role in dict.fromkeys(reward.role for reward in own if reward.model is None):
            made[role] = Scorer([reward for reward in own if reward.role == role])
    except BaseException:
        for scorer in made.values():
            scorer.close()
        raise
    return made


def of_host(reward: RewardSpec, host: Slice) -> RewardSpec:
    """A reward as one of the hosts computes it: with its share of maxConcurrency, at least 1."""
    if reward.http is None:
        return reward
    whole = reward.http.max_concurrency
    share = whole * (host.index + 1) // host.count - whole * host.index // host.count
    http = reward.http.model_copy(update={"max_concurrency": max(1, share)})
    return reward.model_copy(update={"http": http})


def combine(
    rewards: Sequence[RewardSpec],
    scores: Sequence[Scores],
    num_samples: int,
    is_whole: bool = True,
    names_of: NamesOf = numbered,
) -> ScoredSamples:
    """The weighted sum of what the verifiers of one role said, and its statistics.

    Args:
        rewards: of the role.
        scores: of each.
        num_samples: that were scored.
        is_whole: whether nothing is added to the sum, so that it has statistics.
        names_of: what a person finds samples by, from their numbers.
    """
    total = np.zeros(num_samples, dtype=np.float64)
    valid = np.ones(num_samples, dtype=np.bool_)
    scored = np.ones(num_samples, dtype=np.bool_)
    faults: Counter[str] = Counter()
    means: dict[str, tuple[float, float]] = {}
    for reward, score in zip(rewards, scores, strict=True):
        total += reward.weight * score.values.astype(np.float64)
        scored &= score.valid
        if reward.on_error is OnRewardError.EXCLUDE:
            valid &= score.valid
        faults.update(score.errors)
        faults.update({"rescored": score.rescored} if score.rescored else {})
        means[f"{reward.role}/{reward.name}"] = _mean(score.values[score.valid])
    values = np.where(valid, total, 0.0).astype(np.float32)
    spreads: dict[str, Spread] = {}
    if is_whole:
        role = rewards[0].role
        means[f"{role}/mean"] = _mean(values[valid])
        spreads[f"{role}/std"] = Spread.of(values[valid])
    counts = {
        "score/invalid": float(num_samples - scored.sum()),
        "score/excluded": float(num_samples - valid.sum()),
        **{f"score/{fault}": float(count) for fault, count in sorted(faults.items())},
    }
    by_name = {each.name: score for each, score in zip(rewards, scores, strict=True)}
    failures = _named({name: score.failures for name, score in by_name.items()}, names_of)
    terms = {name: score.values for name, score in by_name.items()}
    return ScoredSamples(values, valid, terms, means, spreads, counts, failures)


def _named(
    failures: Mapping[str, Sequence[FailedSamples]], names_of: NamesOf
) -> dict[str, tuple[Failure, ...]]:
    """Of the rewards that had failures, with names that are asked for all at once."""
    numbers = sorted({each.start for found in failures.values() for each in found})
    names = dict(zip(numbers, names_of(numbers), strict=True)) if numbers else {}
    return {
        reward: tuple(each.named(names[each.start]) for each in found)
        for reward, found in failures.items()
        if found
    }


def _mean(values: NDArray[np.float32]) -> tuple[float, float]:
    return float(values.sum(dtype=float)), float(len(values))


def _started(reward: RewardSpec) -> VerifierPool | HTTPScorer:
    return HTTPScorer(reward) if reward.http is not None else VerifierPool(reward)


def _wait_until_ready(pools: Sequence[VerifierPool | HTTPScorer]) -> list[str | None]:
    """The metric that each measures."""
    metrics, problems = [], []
    for pool in pools:
        try:
            metrics.append(pool.wait_until_ready())
        except InvalidReward as problem:
            problems.append(str(problem))
    if problems:
        raise InvalidReward("\n".join(problems))
    return metrics
