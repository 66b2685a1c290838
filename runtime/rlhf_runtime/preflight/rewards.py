"""The verifiers of a job: imported in processes of their own, as reward hosts do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.rewards.errors import DiesLoading, LoadsSlowly
from rlhf_runtime.rewards.measured import check_measured
from rlhf_runtime.rewards.pool import VerifierPool

Started = Sequence[tuple[RewardSpec, VerifierPool]]


@contextmanager
def started_verifiers(spec: RLHFJobSpec, seconds: float) -> Iterator[Started]:
    """Begin to import the modules of all verifiers, and end their processes in the end.

    Args:
        spec: of the job.
        seconds: that an import may take.
    """
    with ExitStack() as stack:
        yield [
            (reward, stack.enter_context(closing(VerifierPool(_alone(reward), seconds))))
            for reward in spec.rewards
            if reward.function is not None
        ]


def check_verifiers(
    spec: RLHFJobSpec, started: Started, one_machine: bool, findings: Findings
) -> None:
    """Wait until all are imported, and compare what they measure with what the job relies on.

    Args:
        spec: of the job.
        started: its verifiers.
        one_machine: whether they have the same memory where they are to score.
        findings: get what is wrong, and who is too slow to tell.
    """
    metrics: dict[str, str | None] = {}
    for reward, pool in started:
        with findings.gathered.check():
            try:
                metrics[reward.name] = pool.wait_until_ready()
            except LoadsSlowly:
                findings.unchecked.append(f"the reward {reward.name}: its module loads slowly")
            except DiesLoading:
                if one_machine:
                    raise
                findings.unchecked.append(f"the reward {reward.name}: its import ends a process")
    if len(metrics) == len(started):
        declared = {name: metric for name, metric in metrics.items() if metric is not None}
        with findings.gathered.check():
            check_measured(spec, declared)


def _alone(reward: RewardSpec) -> RewardSpec:
    """The reward with one process."""
    assert reward.function is not None
    function = reward.function.model_copy(update={"processes": 1})
    return reward.model_copy(update={"function": function})
