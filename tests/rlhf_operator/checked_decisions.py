"""What holds for every single decision, whatever it was made from."""

from __future__ import annotations

from datetime import datetime

from rlhf_api.reading.status import read_status
from rlhf_api.status import RestartStatus, RLHFJobStatus
from rlhf_operator.decide.actions import CreateCluster, SubmitDriver
from rlhf_operator.decide.decision import Decision, Draft
from rlhf_operator.decide.observed import Observed
from rlhf_operator.decide.predicates import FINAL_PHASES, remaining_pods
from rlhf_operator.decide.reconcile import reconcile
from rlhf_operator.decide.settings import Settings

STEPS_TO_REST = 6
"""Decisions on the same observation after which nothing new follows from it."""


def checked_reconcile(observed: Observed, settings: Settings, now: datetime) -> Decision:
    """The operator's decision, which fails if it breaks a rule."""
    decision = reconcile(observed, settings, now)
    assert reconcile(observed, settings, now) == decision, "it depends on something else, too"
    _check_form(decision.status)
    _check_times(observed.job.status, decision.status)
    _check_restarts(observed, decision.status, now)
    _check_holdings(observed, decision, settings, now)
    _check_rest(observed, settings, now)
    return decision


def _check_form(status: RLHFJobStatus) -> None:
    document = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert RLHFJobStatus.model_validate(document) == status == read_status(document)
    types = [each.type for each in status.conditions]
    assert len(set(types)) == len(types), types


def _check_times(before: RLHFJobStatus, after: RLHFJobStatus) -> None:
    times = {each.type: each for each in before.conditions}
    for each in after.conditions:
        last = times.get(each.type)
        if last is not None:
            assert each.last_transition_time >= last.last_transition_time, each
            same = each.status is last.status
            assert not same or each.last_transition_time == last.last_transition_time, each
    assert after.gpu_seconds >= before.gpu_seconds
    assert before.idle_gpu_seconds <= after.idle_gpu_seconds <= after.gpu_seconds
    assert after.busy_gpus in (0, after.gpus)
    for phase, seconds in before.phase_seconds.items():
        assert after.phase_seconds[phase] >= seconds
    if before.phase_time is not None and after.phase_time != before.phase_time:
        assert after.phase != before.phase
    assert after.attempts >= before.attempts
    if before.phase in FINAL_PHASES:
        assert after.phase is before.phase
        assert after.completion_time == before.completion_time
    if before.progress and after.progress:
        assert after.progress.last_report_time >= before.progress.last_report_time
    if before.checkpoint:
        assert after.checkpoint and after.checkpoint.step >= before.checkpoint.step


def _check_restarts(observed: Observed, status: RLHFJobStatus, now: datetime) -> None:
    before, after = observed.job.status.restarts, status.restarts
    assert sum(after.by_reason.values()) == after.total, after
    assert after.total == after.incarnations + after.drivers + after.clusters
    assert after.since_checkpoint <= after.in_a_row <= after.total, after
    if _started_again(before, after) and observed.job.job is not None:
        policy = observed.job.job.spec.failure_policy
        own = after.incarnations - before.incarnations
        uncounted = before.since_checkpoint + own
        assert after.since_checkpoint <= max(policy.max_restarts, uncounted), after
        assert after.next_time is not None
        wait = (after.next_time - now.replace(microsecond=0)).total_seconds()
        assert wait == 0 if after.in_a_row == 1 else wait >= policy.backoff_seconds, after


def _started_again(before: RestartStatus, after: RestartStatus) -> bool:
    return after.drivers + after.clusters > before.drivers + before.clusters


def _check_holdings(
    observed: Observed, decision: Decision, settings: Settings, now: datetime
) -> None:
    ours = [each for each in observed.clusters if each.is_owned]
    assert ours or decision.status.gpus == 0, "it accounts for GPUs that nobody holds"
    kinds = [type(action) for action in decision.actions]
    assert not (observed.job.is_deleting and kinds), "it is Kubernetes that deletes"
    if CreateCluster in kinds:
        pods = {*observed.own_pods, *observed.leftover_pods}
        assert not remaining_pods(Draft(observed, settings, now).snapshot, pods), (
            "another cluster's driver may live"
        )
    if SubmitDriver in kinds:
        driver = decision.status.driver
        assert driver is not None and not driver.has_ended
        living = [each.id for each in observed.head.submissions if not each.state.has_ended]
        assert not set(living) - {driver.submission_id}


def _check_rest(observed: Observed, settings: Settings, now: datetime) -> None:
    """Nothing new follows from the same observation for ever, and what is done is done alike."""
    decision = reconcile(observed, settings, now)
    for _ in range(STEPS_TO_REST):
        observed = observed.with_status(decision.status)
        last, decision = decision, reconcile(observed, settings, now)
        if decision.status == last.status:
            again = reconcile(observed.with_status(decision.status), settings, now)
            assert again.actions == decision.actions and not decision.events
            return
    raise AssertionError(f"it finds no rest: {decision.status}")
