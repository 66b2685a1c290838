"""The verifiers of a job: imported in processes of their own, as reward hosts do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from rlhf_api.problems import FieldPath
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.rewards.declared_metrics import check_metrics
from rlhf_runtime.rewards.errors import LoadCrashed, LoadRaised, LoadTimedOut
from rlhf_runtime.rewards.pool import VerifierPool
from rlhf_sizing.machine import machine_memory_bytes

Started = Sequence[tuple[RewardSpec, VerifierPool]]

HEAD_SHARE = 4
"""One part in so many of a head's memory is for its verifiers' imports together: a pod that exceeds
its limit is killed as a whole, and the rest is for Ray and the driver."""


@contextmanager
def started_verifiers(spec: RLHFJobSpec, seconds: float, one_machine: bool) -> Iterator[Started]:
    """Begin to import the modules of all verifiers, and end their processes in the end.

    Args:
        spec: of the job.
        seconds: that an import may take.
        one_machine: whether they are to score here. Elsewhere they may have more memory.
    """
    rewards = [each for each in spec.rewards if each.function is not None]
    memory = None
    if rewards and not one_machine:
        memory = machine_memory_bytes() // HEAD_SHARE // len(rewards)
    with ExitStack() as stack:
        yield [
            (each, stack.enter_context(closing(VerifierPool(_alone(each), seconds, memory))))
            for each in rewards
        ]


def check_verifiers(
    spec: RLHFJobSpec, started: Started, one_machine: bool, findings: Findings
) -> None:
    """Wait until all are imported, and compare what they measure with what the job relies on.

    Args:
        spec: of the job.
        started: its verifiers.
        one_machine: whether they are to score here. Elsewhere their imports may find what is not
            here: memory, devices.
        findings: get what is wrong, and whose import tells nothing.
    """
    metrics: dict[str, str | None] = {}
    for reward, pool in started:
        with findings.about(*_field_of(spec, reward)):
            try:
                metrics[reward.name] = pool.wait_until_ready()
            except LoadTimedOut:
                findings.unchecked.append(f"the reward {reward.name}: its module loads slowly")
            except (LoadCrashed, LoadRaised) as error:
                if one_machine:
                    raise
                findings.unchecked.append(f"the reward {reward.name}: {_ending_of(error)}")
    if len(metrics) == len(started):
        declared = {name: metric for name, metric in metrics.items() if metric is not None}
        with findings.about("spec", "rewards"):
            check_metrics(spec, declared)


def _field_of(spec: RLHFJobSpec, reward: RewardSpec) -> FieldPath:
    """Which names a reward's function."""
    return "spec", "rewards", spec.rewards.index(reward), "function", "entrypoint"


def _ending_of(error: LoadCrashed | LoadRaised) -> str:
    """How an import ended, in one line."""
    if isinstance(error, LoadCrashed):
        return "its import ends a process"
    return f"its import raises here: {str(error).splitlines()[-1]}"


def _alone(reward: RewardSpec) -> RewardSpec:
    """The reward with one process."""
    assert reward.function is not None
    function = reward.function.model_copy(update={"processes": 1})
    return reward.model_copy(update={"function": function})
