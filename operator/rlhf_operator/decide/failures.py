"""What follows from a failure: another start, or the job's end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlhf_api.exits import ExitCode
from rlhf_api.spec.failure import FailureAction, FailurePolicy
from rlhf_api.status import RestartStatus
from rlhf_operator.decide.settings import Settings

NEVER_AGAIN = (ExitCode.BUG, ExitCode.MANIFEST, ExitCode.USER)
"""Exit codes of failures that come again by themselves."""


@dataclass(frozen=True)
class Failure:
    """Something that ended a driver, or kept it from starting."""

    reason: str
    message: str
    exit_code: int | None = None
    """The driver's. None: it did not get so far as to have one."""
    needs_new_cluster: bool = False
    """Whether the cluster itself is gone or unfit."""
    is_counted: bool = True
    """Whether its restart counts against the limit, unless a rule says otherwise."""
    needs_new_workers: bool = False
    """Whether processes are left on the workers that nobody can end but with their pods."""


def head_refused(said: str) -> Failure:
    """The head does not take this operator's token."""
    message = f"the cluster's head does not take this operator's token ({said})"
    return Failure("HeadRefused", message, needs_new_cluster=True)


def dead_head(seconds: float) -> Failure:
    """The head does not answer."""
    message = f"the cluster's head has not answered for {seconds:.0f} s"
    return Failure("HeadUnreachable", message, needs_new_cluster=True)


def frozen(seconds: float) -> Failure:
    """The driver is there, and does nothing."""
    message = f"the driver has told nothing new for {seconds:.0f} s, not even that it waits"
    return Failure("DriverFrozen", message)


def lost_pods(names: Iterable[str], seconds: float) -> Failure:
    """Pods that cannot end, because nobody is there to end them."""
    message = f"{', '.join(sorted(names)[:3])} did not end within {seconds:.0f} s: the node is lost"
    return Failure("NodeLost", message, needs_new_cluster=True)


@dataclass(frozen=True)
class Verdict:
    """What a failure leads to."""

    restarts: bool
    counts: bool = True
    """Whether the restart counts against the limit."""
    why_not: str = ""
    """What people are told when there is no restart."""


def verdict(failure: Failure, policy: FailurePolicy, restarts: RestartStatus) -> Verdict:
    """The first rule that matches decides; else the exit code does."""
    action = _by_rule(failure, policy) or _by_itself(failure)
    if action is FailureAction.FAIL:
        return Verdict(False)
    if action is FailureAction.RESTART_IGNORING_LIMIT:
        return Verdict(True, counts=False)
    if restarts.since_checkpoint >= policy.max_restarts:
        return Verdict(
            False,
            why_not=f"after {restarts.since_checkpoint} restarts without a new checkpoint; "
            f"failurePolicy.maxRestarts allows {policy.max_restarts}",
        )
    return Verdict(True)


def backoff_seconds(policy: FailurePolicy, in_a_row: int, settings: Settings) -> float:
    """The wait before a restart.

    Args:
        in_a_row: its number since the last new checkpoint: the first waits for nothing, for the
            job has come somewhere.
    """
    if in_a_row <= 1:
        return 0.0
    doublings = min(in_a_row - 2, 16)
    return min(policy.backoff_seconds * 2.0**doublings, settings.longest_backoff_seconds)


def _by_rule(failure: Failure, policy: FailurePolicy) -> FailureAction | None:
    for rule in policy.rules:
        if rule.on_reason is not None and rule.on_reason == failure.reason:
            return rule.action
        if failure.exit_code is not None and failure.exit_code in (rule.on_exit_codes or ()):
            return rule.action
    return None


def _by_itself(failure: Failure) -> FailureAction:
    if not failure.is_counted:
        return FailureAction.RESTART_IGNORING_LIMIT
    return FailureAction.FAIL if failure.exit_code in NEVER_AGAIN else FailureAction.RESTART
