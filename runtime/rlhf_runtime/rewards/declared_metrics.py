"""Checks the metrics that a job's verifiers declare against the manifest. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rlhf_api.spec.checkpoint import EXACT_MATCH, KeepBest
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.rewards.errors import InvalidReward

_EXACT_MATCH = EXACT_MATCH.removeprefix("evaluation/")


def check_metrics(spec: RLHFJobSpec, declared: Mapping[str, str]) -> None:
    """Refuse a job that needs a metric of no verifier, or whose verifiers share a metric.

    Args:
        spec: of the job.
        declared: metrics that verifiers measure, by the reward's name.

    Raises:
        InvalidReward: a metric is missing or declared twice; the message lists all declarations.
    """
    # A metric has one value per evaluation, so one verifier must own it.
    counts = Counter(declared.values())
    for field in _fields_that_need_exact_match(spec):
        if _EXACT_MATCH not in counts:
            raise InvalidReward(
                f"no verifier measures {_EXACT_MATCH}, which {field} needs: got "
                f"{_declarations(spec, declared)}, allowed one that does, if need be of weight 0; "
                f'decorate the verifier with @measures("{_EXACT_MATCH}") of '
                "rlhf_runtime.rewards, or remove the field"
            )
    for metric, count in counts.items():
        if count > 1:
            raise InvalidReward(
                f"several verifiers measure {metric}: got {_declarations(spec, declared)}, allowed "
                "one verifier for each metric; give the others a metric of their own, or none, by "
                "@measures of rlhf_runtime.rewards"
            )


def _fields_that_need_exact_match(spec: RLHFJobSpec) -> Iterator[str]:
    warm_start = spec.schedule.warm_start
    if warm_start is not None and warm_start.stop_at_exact_match is not None:
        yield "schedule.warmStart.stopAtExactMatch"
    if spec.checkpoint.keep_best is KeepBest.EXACT_MATCH:
        yield "checkpoint.keepBest"


def _declarations(spec: RLHFJobSpec, declared: Mapping[str, str]) -> str:
    rewards = (f"{reward.name} ({declared.get(reward.name, 'none')})" for reward in spec.rewards)
    return ", ".join(rewards) or "no reward"
