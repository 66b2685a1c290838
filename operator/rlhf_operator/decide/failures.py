"""Failures, and the rules that decide between another start and the job's end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlhf_api.exits import ExitCode
from rlhf_api.report import SavingProblem
from rlhf_api.spec.failure import FailureAction, FailurePolicy
from rlhf_api.status import RestartStatus
from rlhf_operator.decide.settings import Settings

PERMANENT_EXITS = (ExitCode.BUG, ExitCode.MANIFEST, ExitCode.USER)
"""Exit codes of failures that another start would repeat."""


@dataclass(frozen=True)
class Failure:
    """An error that ended a driver, or kept it from starting."""

    reason: str
    message: str
    exit_code: int | None = None
    """The driver's. None: it had none."""
    needs_new_cluster: bool = False
    """True if the cluster is lost or unfit."""
    is_counted: bool = True
    """True if its restart counts against the limit, unless a rule says otherwise."""
    needs_new_workers: bool = False
    """True if processes remain on the workers that only the end of their pods ends."""
    is_disruption: bool = False
    """True if a node was drained, preempted or lost: the job is not to blame."""


def head_refused(answer: str) -> Failure:
    """Return the failure of a head that refuses this operator's token."""
    message = f"the cluster's head refuses this operator's token ({answer})"
    return Failure("HeadRefused", message, needs_new_cluster=True)


def head_dead(seconds: float) -> Failure:
    """Return the failure of a head that does not answer."""
    message = f"the cluster's head has not answered for {seconds:.0f} s"
    return Failure("HeadUnreachable", message, needs_new_cluster=True)


def driver_frozen(seconds: float) -> Failure:
    """Return the failure of a driver that runs and reports nothing."""
    message = f"the driver has reported nothing for {seconds:.0f} s, not even a heartbeat"
    return Failure("DriverFrozen", message)


def node_lost(pods: Iterable[str], seconds: float) -> Failure:
    """Return the failure of pods, by name, that cannot end because their kubelet is gone."""
    message = f"{', '.join(sorted(pods)[:3])} did not end within {seconds:.0f} s: the node is lost"
    return Failure("NodeLost", message, needs_new_cluster=True, is_disruption=True)


@dataclass(frozen=True)
class Verdict:
    """The consequence of a failure."""

    restarts: bool
    counts: bool = True
    """True if the restart counts against maxRestarts."""
    is_disruption: bool = False
    """True if it counts against maxDisruptions."""
    obstacle: str = ""
    """Reason against a restart, for the message."""


def decide_restart(failure: Failure, policy: FailurePolicy, restarts: RestartStatus) -> Verdict:
    """Decide by the first rule that matches, else by the exit code."""
    rule = _action_of_rules(failure, policy)
    if rule is None and failure.is_disruption:
        return _restart_after_disruption(policy, restarts)
    action = rule or _default_action(failure)
    if action is FailureAction.FAIL:
        return Verdict(False)
    if action is FailureAction.RESTART_IGNORING_LIMIT:
        return Verdict(True, counts=False)
    # Restarts with a new checkpoint in between are not limited: the job makes progress.
    if restarts.since_checkpoint >= policy.max_restarts:
        return Verdict(
            False,
            obstacle=f"after {restarts.since_checkpoint} restarts without a new checkpoint; "
            f"failurePolicy.maxRestarts allows {policy.max_restarts}",
        )
    return Verdict(True)


def _restart_after_disruption(policy: FailurePolicy, restarts: RestartStatus) -> Verdict:
    number = restarts.disruptions_since_checkpoint
    if number < policy.max_disruptions:
        return Verdict(True, counts=False, is_disruption=True)
    return Verdict(
        False,
        obstacle=f"after {number} disruptions without a new checkpoint; "
        f"failurePolicy.maxDisruptions allows {policy.max_disruptions}",
    )


def backoff_seconds(policy: FailurePolicy, in_a_row: int, settings: Settings) -> float:
    """Return the wait before a restart; it doubles from the third on.

    Args:
        in_a_row: number of the restart since the last new checkpoint, from 1.
    """
    # The first one since a checkpoint, or since the job's start, is no series of failures yet.
    if in_a_row <= 1:
        return 0.0
    doublings = min(in_a_row - 2, 16)
    return min(policy.backoff_seconds * 2.0**doublings, settings.max_backoff_seconds)


def _action_of_rules(failure: Failure, policy: FailurePolicy) -> FailureAction | None:
    for rule in policy.rules:
        if rule.on_reason is not None and rule.on_reason == failure.reason:
            return rule.action
        if failure.exit_code is not None and failure.exit_code in (rule.on_exit_codes or ()):
            return rule.action
    return None


def _default_action(failure: Failure) -> FailureAction:
    if failure.reason == SavingProblem.NO_SPACE:
        # The driver has waited for space; a further start would train the same steps in vain.
        return FailureAction.FAIL
    if not failure.is_counted:
        return FailureAction.RESTART_IGNORING_LIMIT
    return FailureAction.FAIL if failure.exit_code in PERMANENT_EXITS else FailureAction.RESTART
