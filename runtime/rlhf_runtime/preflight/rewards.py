"""Checks the verifiers of a job: imports them in separate processes, as reward hosts do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.reward_trial import collecting_errors, field_of
from rlhf_runtime.rewards.declared_metrics import check_metrics
from rlhf_runtime.rewards.errors import LoadCrashed, LoadRaised, LoadTimedOut, RewardError
from rlhf_runtime.rewards.http_headers import request_headers
from rlhf_runtime.rewards.pool import VerifierPool
from rlhf_sizing.machine import machine_memory_bytes

Started = Sequence[tuple[RewardSpec, VerifierPool]]

# Divisor of a head's memory for the imports of all verifiers together.
# A pod that exceeds its limit is killed, and Ray and the driver need the rest.
HEAD_SHARE = 4


@contextmanager
def start_verifiers(spec: RLHFJobSpec, seconds: float, one_machine: bool) -> Iterator[Started]:
    """Start to import the modules of all verifiers; end their processes at exit.

    Args:
        spec: of the job.
        seconds: limit of an import.
        one_machine: True if they will score on this machine; elsewhere they may have more memory.
    """
    rewards = [reward for reward in spec.rewards if reward.function is not None]
    memory = None
    if rewards and not one_machine:
        memory = machine_memory_bytes() // HEAD_SHARE // len(rewards)
    with ExitStack() as stack:
        yield [
            (reward, stack.enter_context(closing(VerifierPool(_single(reward), seconds, memory))))
            for reward in rewards
        ]


def check_verifiers(
    spec: RLHFJobSpec, started: Started, one_machine: bool, findings: Findings
) -> Started:
    """Wait for the imports, and check that the job's metrics are measured.

    Args:
        spec: of the job.
        started: its verifiers.
        one_machine: True if they will score on this machine. Elsewhere a failed import may succeed,
            with more memory or devices.
        findings: collects errors, and verifiers whose import gave no result.

    Returns:
        The verifiers that can score.
    """
    metrics: dict[str, str | None] = {}
    for reward, pool in started:
        with findings.about(*field_of(spec, reward)):
            try:
                metrics[reward.name] = pool.wait_until_ready()
            except LoadTimedOut:
                findings.unchecked.append(f"the reward {reward.name}: its module loads slowly")
            except (LoadCrashed, LoadRaised) as error:
                if one_machine:
                    raise
                findings.unchecked.append(f"the reward {reward.name}: {_failure_text(error)}")
    # A verifier without an answer may declare the metric that seems to be missing.
    if len(metrics) == len(started):
        declared = {name: metric for name, metric in metrics.items() if metric is not None}
        with findings.about("spec", "rewards"):
            check_metrics(spec, declared)
    return [(reward, pool) for reward, pool in started if reward.name in metrics]


def check_services(spec: RLHFJobSpec, one_machine: bool, findings: Findings) -> list[RewardSpec]:
    """Check that the environment has the values of headers.

    Args:
        spec: of the job.
        one_machine: True if this machine asks the services.
        findings: collects errors, and services whose headers are on other machines.

    Returns:
        The rewards by services that can be asked from here.
    """
    usable = []
    for reward in spec.rewards:
        if reward.service is None:
            continue
        section = field_of(spec, reward)[:-1]
        with findings.about(*section, "headers"):
            try:
                request_headers(reward)
            except RewardError as error:
                if one_machine:
                    raise
                findings.unchecked.append(f"the reward {reward.name}: {error}")
            else:
                usable.append(reward)
    return usable


def _failure_text(error: LoadCrashed | LoadRaised) -> str:
    """The failure of an import, in one line."""
    if isinstance(error, LoadCrashed):
        return "its import ends a process"
    return f"its import raises here: {str(error).splitlines()[-1]}"


def _single(reward: RewardSpec) -> RewardSpec:
    """A reward with one process, which scores all samples."""
    reward = collecting_errors(reward)
    # One import proves as much as several.
    return reward.with_settings(processes=1)
