"""The reward of a response: the weighted sum of all verifiers, which run in parallel."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.services import OnRewardError
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.journal.answers import CallAnswers
from rlhf_runtime.rewards.applicable_samples import RewardScorer
from rlhf_runtime.rewards.early_request import EarlyBatches, EarlyRequest
from rlhf_runtime.rewards.errors import InvalidReward, RewardError
from rlhf_runtime.rewards.journaled_scores import JournaledRequest
from rlhf_runtime.rewards.make_scorer import make_scorer
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import FailedSamples, Failure, SampleNamer, Scores, name_by_number
from rlhf_runtime.telemetry.spread import Spread

Complete = Callable[[], Future[Scores]]
"""Returns the scores of a reward that was asked; it may wait for them."""

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScoredSamples:
    """Rewards of some samples.

    values: float32, shape [samples]; the weighted sum, 0 where not valid.
    valid: bool, shape [samples]; False for excluded samples: a verifier with onError: Exclude
        could not score them, or all verifiers abstained.
    terms: each verifier's scores, by the reward's name, float32, shape [samples]; 0 without one.
    means: by metric a sum and a number of samples: <role>/<name>, of a verifier over the samples
        that it scored; <role>/<name>/<part>, of a part over those that have it; <role>/mean over
        the valid samples, unless models add to the sum; of several sources also
        <role>/<source>/<name>, <role>/<source>/<name>/<part> and <role>/<source>/mean.
    spreads: <role>/std, of the valid samples, under the same condition.
    counts: score/invalid, samples that some verifier could not score, excluded or not;
        score/excluded, excluded samples; score/<fault>, samples with this fault;
        score/rescored, samples that were scored again alone because their batch failed;
        score/abstained, samples on which some verifier abstained, and
        score/abstained/<name>, those on which this one did.
    num_failed: samples that a verifier with onError: Exclude could not score, by the reward's name.
    failures: the first failures of each verifier that had any, by the reward's name.
    """

    values: NDArray[np.float32]
    valid: NDArray[np.bool_]
    terms: Mapping[str, NDArray[np.float32]]
    means: Mapping[str, tuple[float, float]]
    spreads: Mapping[str, Spread]
    counts: Mapping[str, float]
    num_failed: Mapping[str, int]
    failures: Mapping[str, tuple[Failure, ...]]


class Scorer:
    """All verifiers and services of a role. Use it as a context manager, or close it."""

    def __init__(self, rewards: Sequence[RewardSpec]) -> None:
        """Start the processes of all verifiers and wait until all have loaded their functions.

        Args:
            rewards: of the role; rewards by models are skipped, ranks compute them.

        Raises:
            InvalidReward: some cannot be loaded; the message lists all of them.
        """
        self._rewards = tuple(reward for reward in rewards if reward.model is None)
        self._models = tuple(reward for reward in rewards if reward.model is not None)
        self._pools = [make_scorer(reward) for reward in self._rewards]
        try:
            # All have started before the first one is awaited, so that they load in parallel.
            metrics = _wait_until_ready(self._pools)
        except BaseException:
            self.close()
            raise
        named = zip(self._rewards, metrics, strict=True)
        # Metrics that verifiers declare, by the reward's name.
        self.declared_metrics = {
            reward.name: metric for reward, metric in named if metric is not None
        }

    def score(
        self,
        samples: Sequence[Sample],
        name_samples: SampleNamer = name_by_number,
        answers: CallAnswers | None = None,
        early: EarlyBatches = MappingProxyType({}),
    ) -> ScoredSamples:
        """Score samples with all verifiers in parallel.

        Args:
            samples: to score.
            name_samples: names samples in messages. It may be slow: it is called once, after
                scoring, for the reported failures only.
            answers: the journal's answers about the samples. None: no journal.
            early: batches that were asked for while responses were generated.

        Raises:
            RewardError: a verifier with onError: Fail failed.
            JournalMismatch: an earlier attempt has asked about other samples.
            CannotRecord: the journal cannot be written.
        """
        # All verifiers finish before an error is raised, so that none runs on unobserved.
        requests = [complete() for complete in self._submit(samples, answers, early)]
        wait(requests)
        if answers is not None:
            answers.sync()
        scores = [request.result() for request in requests]
        scored = combine_scores(
            self._rewards,
            scores,
            len(samples),
            self._models,
            name_samples,
            [sample.source for sample in samples],
        )
        for reward, pool, result in zip(self._rewards, self._pools, scores, strict=True):
            if not result.errors:
                continue
            if reward.on_error is OnRewardError.FAIL:
                cause = "service or its url" if reward.service else f"{reward.chosen} or the row"
                raise RewardError(
                    f"{pool.title} failed and onError is Fail: {scored.failures[reward.name][0]}\n"
                    f"correct the {cause}, or set onError to Exclude or Zero"
                )
            LOGGER.warning(
                "%s has no score for %d of %d samples (onError is %s), the first: %s",
                *(pool.title, sum(result.errors.values()), len(samples), reward.on_error.value),
                scored.failures[reward.name][0],
            )
        return scored

    def _submit(
        self, samples: Sequence[Sample], answers: CallAnswers | None, early: EarlyBatches
    ) -> list[Complete]:
        """Ask all verifiers without waiting."""
        journaled: list[JournaledRequest | None] = [None] * len(self._pools)
        if answers is not None:
            journaled = [JournaledRequest(reward, samples, answers) for reward in self._rewards]
        # The journal is read for all of them before one is asked: it may end the job.
        known = [{} if request is None else request.known for request in journaled]
        submitted: list[Complete] = []
        for (reward, pool), request, scores in zip(self.rewards, journaled, known, strict=True):
            ask = partial(_ask, pool, samples) if request is None else partial(request.ask, pool)
            batches = early.get(reward.name, ())
            if batches and not scores:
                joined = EarlyRequest(reward, batches, len(samples), ask, answers)
                submitted.append(joined.complete)
                continue
            future = pool.submit(samples) if request is None else request.submit(pool)
            submitted.append(partial(_itself, future))
        return submitted

    @property
    def rewards(self) -> tuple[tuple[RewardSpec, RewardScorer], ...]:
        """The rewards, with their scorers."""
        return tuple(zip(self._rewards, self._pools, strict=True))

    def close(self) -> None:
        """Close all verifiers."""
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


def _ask(pool: RewardScorer, samples: Sequence[Sample], numbers: Sequence[int]) -> Future[Scores]:
    return pool.submit([samples[number] for number in numbers])


def _itself(future: Future[Scores]) -> Future[Scores]:
    return future


def start_scorers(rewards: Sequence[RewardSpec], host: Slice) -> dict[str, Scorer]:
    """Start the verifiers of every role.

    Args:
        rewards: of the job.
        host: this host among the job's reward hosts, which divide the requests to a service.

    Raises:
        InvalidReward: some cannot be loaded.
    """
    started: dict[str, Scorer] = {}
    own = [for_host(reward, host) for reward in rewards]
    try:
        for role in dict.fromkeys(reward.role for reward in own if reward.model is None):
            started[role] = Scorer([reward for reward in own if reward.role == role])
    except BaseException:
        for scorer in started.values():
            scorer.close()
        raise
    return started


def for_host(reward: RewardSpec, host: Slice) -> RewardSpec:
    """Return a reward with this host's share of maxConcurrency, at least 1."""
    if reward.service is None:
        return reward
    limit = reward.service.max_concurrency
    # Shares differ by at most 1 and sum to the limit.
    share = limit * (host.index + 1) // host.count - limit * host.index // host.count
    return reward.with_settings(max_concurrency=max(1, share))


def combine_scores(
    rewards: Sequence[RewardSpec],
    scores: Sequence[Scores],
    num_samples: int,
    models: Sequence[RewardSpec] = (),
    name_samples: SampleNamer = name_by_number,
    sources: Sequence[str | None] = (),
) -> ScoredSamples:
    """Compute the weighted sum of all scores of one role, and its statistics.

    Args:
        rewards: of the role.
        scores: of each reward.
        num_samples: number of samples.
        models: rewards by models that add to the sum later; with any it has no statistics here.
        name_samples: names samples in messages.
        sources: of the samples, by name; None or empty: the data has a single one.
    """
    total = np.zeros(num_samples, dtype=np.float64)
    valid = ~_unanimous_abstentions(rewards, scores, num_samples, models)
    scored = np.ones(num_samples, dtype=np.bool_)
    faults: Counter[str] = Counter()
    averaged: dict[str, Averaged] = {}
    for reward, score in zip(rewards, scores, strict=True):
        total += reward.weight * score.values.astype(np.float64)
        answered = score.valid | score.abstained
        scored &= answered
        if reward.on_error is OnRewardError.EXCLUDE:
            valid &= answered
        faults.update(score.errors)
        faults.update({"rescored": score.rescored} if score.rescored else {})
        averaged |= _averaged(reward, score)
    # Summed in float64 and rounded once.
    values = np.where(valid, total, 0.0).astype(np.float32)
    spreads: dict[str, Spread] = {}
    # With scores of models to come, mean and spread are computed where the sum is complete.
    if not models:
        role = rewards[0].role
        averaged[f"{role}/mean"] = Averaged(values, valid)
        spreads[f"{role}/std"] = Spread.of(values[valid])
    counts = {
        "score/invalid": float(num_samples - scored.sum()),
        "score/excluded": float(num_samples - valid.sum()),
        **{f"score/{fault}": float(count) for fault, count in sorted(faults.items())},
    }
    by_name = {reward.name: score for reward, score in zip(rewards, scores, strict=True)}
    counts |= _abstention_counts(by_name)
    failures = _name_failures(
        {name: score.failures for name, score in by_name.items()}, name_samples
    )
    terms = {name: score.values for name, score in by_name.items()}
    means = dict(_means(averaged, sources))
    num_failed = {
        reward.name: sum(by_name[reward.name].errors.values())
        for reward in rewards
        if reward.on_error is OnRewardError.EXCLUDE
    }
    return ScoredSamples(values, valid, terms, means, spreads, counts, num_failed, failures)


def _unanimous_abstentions(
    rewards: Sequence[RewardSpec],
    scores: Sequence[Scores],
    num_samples: int,
    models: Sequence[RewardSpec],
) -> NDArray[np.bool_]:
    """Mark samples on which all rewards abstained that have a weight."""
    has_weights = any(reward.weight for reward in (*rewards, *models))
    # A reward of weight 0 is measured only: its score alone is no reason to train on a sample.
    counted = [
        score
        for reward, score in zip(rewards, scores, strict=True)
        if reward.weight or not has_weights
    ]
    # A model never abstains.
    is_scored_later = any(model.weight or not has_weights for model in models)
    unanimous = np.full(num_samples, not is_scored_later, dtype=np.bool_)
    for score in counted:
        unanimous &= score.abstained
    return unanimous


def _abstention_counts(by_name: Mapping[str, Scores]) -> dict[str, float]:
    """Count abstentions, in total and by reward; empty without any."""
    own = {
        f"score/abstained/{name}": float(score.abstained.sum())
        for name, score in by_name.items()
        if score.abstained.any()
    }
    if not own:
        return {}
    some = np.logical_or.reduce([score.abstained for score in by_name.values()])
    return {"score/abstained": float(some.sum()), **own}


class Averaged(NamedTuple):
    """Numbers of samples of which a mean is a metric."""

    values: NDArray[np.float32]
    valid: NDArray[np.bool_]
    """True for samples that have one."""

    def mean(self, chosen: NDArray[np.bool_]) -> tuple[float, float]:
        """Return sum and number of the valid values of some samples."""
        values = self.values[self.valid & chosen]
        return float(values.sum(dtype=float)), float(len(values))


def _averaged(reward: RewardSpec, score: Scores) -> dict[str, Averaged]:
    """Return the numbers of a reward and of its parts by metric."""
    metric = f"{reward.role}/{reward.name}"
    parts = {
        f"{metric}/{part}": Averaged(column, score.valid & ~np.isnan(column))
        for part, column in score.parts.items()
    }
    return {metric: Averaged(score.values, score.valid), **parts}


def _means(
    averaged: Mapping[str, Averaged], sources: Sequence[str | None]
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield sum and number for each metric, and for each source's own."""
    names = np.asarray(list(sources), dtype=object)
    for metric, numbers in averaged.items():
        yield metric, numbers.mean(np.ones(len(numbers.values), dtype=np.bool_))
        role, _, own = metric.partition("/")
        for source in dict.fromkeys(sources):
            if source is not None:
                yield f"{role}/{source}/{own}", numbers.mean(names == source)


def _name_failures(
    failures: Mapping[str, Sequence[FailedSamples]], name_samples: SampleNamer
) -> dict[str, tuple[Failure, ...]]:
    """Name the failures of all rewards that had any, in one call."""
    numbers = sorted({failure.start for failed in failures.values() for failure in failed})
    names = dict(zip(numbers, name_samples(numbers), strict=True)) if numbers else {}
    return {
        reward: tuple(failure.with_name(names[failure.start]) for failure in failed)
        for reward, failed in failures.items()
        if failed
    }


def _wait_until_ready(pools: Sequence[RewardScorer]) -> list[str | None]:
    """Wait for all verifiers; returns the metric that each declares."""
    metrics, problems = [], []
    for pool in pools:
        try:
            metrics.append(pool.wait_until_ready())
        except InvalidReward as problem:
            problems.append(str(problem))
    if problems:
        raise InvalidReward("\n".join(problems))
    return metrics
