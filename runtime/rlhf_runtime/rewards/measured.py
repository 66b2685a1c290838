"""What a job's verifiers measure, by what they declare, and whether the manifest finds it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rlhf_api.spec.checkpoint import EXACT_MATCH, KeepBest
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.rewards.errors import InvalidReward

_EXACT_MATCH = EXACT_MATCH.removeprefix("evaluation/")


def check_measured(spec: RLHFJobSpec, declared: Mapping[str, str]) -> None:
    """Refuse a job of which a field relies on a metric that no verifier measures, or that two do.

    Args:
        spec: of the job.
        declared: metrics, by the names of the rewards whose verifiers measure them.

    Raises:
        InvalidReward: with what each reward's verifier declares.
    """
    counts = Counter(declared.values())
    for field in _fields_that_need_exact_match(spec):
        if _EXACT_MATCH not in counts:
            raise InvalidReward(
                f"no verifier measures {_EXACT_MATCH}, which {field} needs: got "
                f"{_told(spec, declared)}, allowed one that does, if need be of weight 0; decorate "
                f'the verifier with @measures("{_EXACT_MATCH}") of rlhf_runtime.rewards, or remove '
                "the field"
            )
    for metric, count in counts.items():
        if count > 1:
            raise InvalidReward(
                f"several verifiers measure {metric}: got {_told(spec, declared)}, allowed one "
                "verifier for each metric; give the others a metric of their own, or none, by "
                "@measures of rlhf_runtime.rewards"
            )


def _fields_that_need_exact_match(spec: RLHFJobSpec) -> Iterator[str]:
    warm_start = spec.schedule.warm_start
    if warm_start is not None and warm_start.stop_at_exact_match is not None:
        yield "schedule.warmStart.stopAtExactMatch"
    if spec.checkpoint.keep_best is KeepBest.EXACT_MATCH:
        yield "checkpoint.keepBest"


def _told(spec: RLHFJobSpec, declared: Mapping[str, str]) -> str:
    """What every reward's verifier declares."""
    said = (f"{each.name} ({declared.get(each.name, 'none')})" for each in spec.rewards)
    return ", ".join(said) or "no reward"
