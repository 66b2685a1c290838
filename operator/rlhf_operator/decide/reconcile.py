"""The operator's one decision: from the observed state and the status to what to do next. Pure.

Every reconcile decides from the current state and the status, never from the content of an event.
The status is written before any action runs, so a decision that was cut short is made again.

    Pending ─> Planning ─> Provisioning ─> Running ─> Succeeded | Failed
       ^                        ^  └── Restarting <──┘
       └──────── Suspended <────┴───────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from rlhf_operator.decide.acceptance import is_refused
from rlhf_operator.decide.api_errors import refresh_stalled
from rlhf_operator.decide.cluster_life import follow_cluster
from rlhf_operator.decide.decision import Decision, Draft
from rlhf_operator.decide.observed import Observed, OtherRelease
from rlhf_operator.decide.predicates import (
    Snapshot,
    always,
    deadline_seconds_left,
    has_cluster,
    has_earlier_job_leftovers,
    has_ended,
    has_leftovers,
    has_name_conflict,
    is_backing_off,
    is_deleting,
    is_driver_stopping,
    is_outdated,
    is_past_deadline,
    is_suspension_requested,
    lacks_kuberay,
    lacks_plan,
)
from rlhf_operator.decide.provisioning import (
    await_backoff,
    await_earlier_job,
    await_kuberay,
    await_leftovers,
    await_name,
    await_plan,
    create_cluster,
    pin_manifest,
    reject,
    set_accepted,
)
from rlhf_operator.decide.settings import Settings
from rlhf_operator.decide.suspension import await_stopped_driver, replace_outdated, suspend
from rlhf_operator.decide.teardown import clean_up, fail_past_deadline, leave_to_kubernetes

Predicate = Callable[[Snapshot], bool]
Transition = Callable[[Draft], None]

TRANSITIONS: Sequence[tuple[Predicate, Transition]] = (
    # A finalizer may keep a deleted job: nothing is created for it any more, whatever its phase.
    (is_deleting, leave_to_kubernetes),
    # Final phases are never left.
    (has_ended, clean_up),
    # Before the deadline: the time of a suspended job does not run.
    (is_suspension_requested, suspend),
    (is_past_deadline, fail_past_deadline),
    # Before the cluster is followed: an outdated one gets no further driver.
    (is_outdated, replace_outdated),
    # A driver that was asked to stop cannot be called back: wait for its end, then start another.
    (is_driver_stopping, await_stopped_driver),
    (has_cluster, follow_cluster),
    # Without a cluster: check, plan, and create the next one when nothing of the last one is left.
    (has_leftovers, await_leftovers),
    # After leftovers: old clusters are deleted even if the new manifest is refused.
    (is_refused, reject),
    (lacks_plan, await_plan),
    (lacks_kuberay, await_kuberay),
    # After the checks and the plan: a bad edit is reported during the back-off, too.
    (is_backing_off, await_backoff),
    # After the checks, too: a bad manifest is reported while the deleted job still ends.
    (has_earlier_job_leftovers, await_earlier_job),
    (has_name_conflict, await_name),
    (always, create_cluster),
)
"""The state machine: the transition of the first predicate that is true."""


def reconcile(observed: Observed, settings: Settings, now: datetime) -> Decision:
    """Decide what to do about a job."""
    if observed.other_release is not None:
        return _leave_alone(observed, observed.other_release, settings, now)
    draft = Draft(observed, settings, now)
    _refresh(draft)
    state = draft.snapshot
    transition = next(transition for predicate, transition in TRANSITIONS if predicate(state))
    transition(draft)
    # Last: it depends on the actions that the transition has requested.
    refresh_stalled(draft)
    return draft.decision()


def _leave_alone(
    observed: Observed, release: OtherRelease, settings: Settings, now: datetime
) -> Decision:
    """Leave a job to the release that created its cluster."""
    draft = Draft(observed, settings, now)
    state = draft.snapshot
    # The other release writes the status and deletes the clusters, as soon as it acts again.
    if not (release.acts or is_deleting(state) or has_ended(state)):
        message = (
            f"the release {release.name} of the operator, which created the job's cluster, does "
            "not act: start it again, or uninstall it, and this release takes the job over"
        )
        phase = observed.job.status.phase
        draft.set_phase(phase, "OtherRelease", message, is_warning=True, is_stuck=True)
        draft.requeue_after(settings.wait_seconds)
        return draft.decision()
    return Decision(observed.job.status, (), (), (), settings.wait_seconds)


def _refresh(draft: Draft) -> None:
    """Update what is independent of the transition: acceptance, pinned defaults, the deadline."""
    state = draft.snapshot
    if is_deleting(state) or has_ended(state):
        return
    if has_cluster(state):
        # An unreadable manifest does not stop a driver: it trains on with the one it has.
        set_accepted(draft, draft.observed.job.problem)
        pin_manifest(draft)
    left = deadline_seconds_left(state)
    if left is not None and left > 0 and not is_suspension_requested(state):
        draft.requeue_after(left)
