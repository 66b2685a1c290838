"""A job survives whatever happens, in any order.

For a longer search: `RLHF_TEST_EXAMPLES=5000 pytest tests/rlhf_operator/test_any_order.py`. It
draws other examples each time, and prints a short one that fails.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Phases
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rlhf_api.exits import ExitCode
from rlhf_api.status import JobPhase
from rlhf_kube.kinds import Kind
from rlhf_operator.clients.head.protocol import SubmissionState

from ..depth import examples
from .checked_decisions import checked_reconcile
from .fake_driver import FakeDriver
from .troubled_world import ERRORS, KEY, troubled_world
from .world import NAMESPACE, manifest

EXAMPLES = os.environ.get("RLHF_TEST_EXAMPLES")
ROUNDS = 30
"""Two minutes each, in which a job must come to its end when nothing goes wrong any more."""
SETTLED = (JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.SUSPENDED)

seconds = st.sampled_from([0.5, 2.0, 5.0, 15.0, 31.0, 100.0, 200.0, 700.0])
codes = st.sampled_from([0, 1, 2, 3, 4, 130, 137, 255, -9, -15])
NEVER_COUNTED = [
    {"onReason": "ClusterLost", "action": "RestartIgnoringLimit"},
    {"onExitCodes": [3, 4, 255], "action": "RestartIgnoringLimit"},
]
rules = st.sampled_from([[], NEVER_COUNTED])


def _policy(restarts: int, rules: list[Any]) -> dict[str, Any]:
    return {"maxRestarts": restarts, "backoffSeconds": 5, "rules": rules}


class AnyOrder(RuleBasedStateMachine):
    """What can happen to a job, its cluster, its driver and the operator."""

    def __init__(self) -> None:
        super().__init__()
        self._context = troubled_world()
        self.world = self._context.__enter__()

    @initialize(is_training=st.booleans(), rules=rules)
    def a_job_is_there(self, is_training: bool, rules: list[Any]) -> None:
        self.world.edit_job(failurePolicy=_policy(3, rules))
        if is_training:
            self.all_goes_well(5.0)
            self.the_driver_advances(1, True, 0)

    # What should happen, does: more often than all else, so that jobs come far

    @rule(seconds=seconds)
    def all_goes_well(self, seconds: float) -> None:
        self.world.run_kubelets()
        self.world.settle()
        self.world.run_kuberay()
        self.world.wait(seconds)
        self.drivers_begin()
        self.world.settle()

    @rule(step=st.integers(0, 9))
    def the_job_goes_on(self, step: int) -> None:
        self.all_goes_well(40.0)
        self.the_driver_advances(step, False, 0)
        self.world.wait(20.0)

    @precondition(lambda self: self._running())
    @rule(code=st.sampled_from([4, 130, 255, -9]))
    def the_driver_fails_and_starts_again(self, code: int) -> None:
        self.the_driver_ends(code)
        self.all_goes_well(31.0)

    # Time, and who notices

    @rule(seconds=seconds)
    def time_passes(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule()
    def the_operator_reconciles(self) -> None:
        self.world.settle()

    @rule()
    def one_reconcile(self) -> None:
        self.world.reconcile(KEY)

    @rule(are_late=st.booleans())
    def watches_are_late_or_not(self, are_late: bool) -> None:
        self.world.watches_are_late = are_late
        if not are_late:
            self.world.tell()

    @rule()
    def watches_tell(self) -> None:
        self.world.tell()

    @rule()
    def a_watch_begins_anew(self) -> None:
        self.world.lose_deletions()

    @rule(
        makers=st.lists(st.sampled_from(ERRORS), min_size=1, max_size=4),
        skip=st.integers(0, 8),
        is_after=st.booleans(),
    )
    def requests_will_fail(self, makers: list, skip: int, is_after: bool) -> None:  # type: ignore[type-arg]
        trouble = self.world.trouble
        trouble.errors = [make() for make in makers]
        trouble.skip, trouble.is_after = skip, is_after

    @rule()
    def the_operator_is_replaced(self) -> None:
        self.world.start_operator()

    # People

    @precondition(lambda self: self.world.exists())
    @rule(suspend=st.booleans())
    def a_user_suspends_or_resumes(self, suspend: bool) -> None:
        self.world.edit_job(suspend=suspend)

    @precondition(lambda self: self.world.exists())
    @rule(
        active=st.sampled_from([None, 1, 60, 100_000]),
        start=st.sampled_from([None, 1, 60, 100_000]),
        kept=st.sampled_from([0, 300]),
        restarts=st.sampled_from([0, 3]),
        rules=rules,
    )
    def a_user_edits(
        self, active: int | None, start: int | None, kept: int, restarts: int, rules: list[Any]
    ) -> None:
        policy = _policy(restarts, rules)
        fields = {"activeDeadlineSeconds": active, "startDeadlineSeconds": start}

        def edit(job: dict) -> None:  # type: ignore[type-arg]
            spec = job["spec"]
            spec |= {"ttlSecondsAfterFinished": kept, "failurePolicy": policy}
            for name, value in fields.items():
                spec.pop(name, None)
                if value is not None:
                    spec[name] = value

        self.world.kube.edit(Kind.JOB, *KEY, edit)

    @precondition(lambda self: self.world.exists())
    @rule(steps=st.sampled_from([10, 20]), resumes=st.booleans())
    def a_user_edits_what_runs(self, steps: int, resumes: bool) -> None:
        """Only a job that is suspended, as the API server sees to it."""
        schedule = {**self.world.job()["spec"]["schedule"], "steps": steps}
        self.world.edit_job(suspend=True)
        self.world.edit_job(schedule=schedule, suspend=not resumes)

    @precondition(lambda self: self.world.exists() and self._running())
    @rule(seconds=seconds)
    def a_user_edits_what_trains(self, seconds: float) -> None:
        """And the job is to train on at once: the operator may not learn of the suspension."""
        before = self.world.job()["spec"]["schedule"]["steps"]
        self.a_user_edits_what_runs(30 - before, resumes=True)
        self.all_goes_well(seconds)

    @precondition(lambda self: self.world.exists())
    @rule()
    def a_user_deletes_the_job(self) -> None:
        self.world.delete_job()

    @precondition(lambda self: self.world.exists())
    @rule()
    def a_user_deletes_the_job_in_the_foreground(self) -> None:
        self.world.delete_in_foreground()

    @rule(at_once=st.booleans())
    def the_garbage_collector_is_late_or_not(self, at_once: bool) -> None:
        self.world.kube.collects_at_once = at_once
        if at_once:
            self.world.collect_garbage()

    @precondition(lambda self: not self.world.exists())
    @rule()
    def a_user_submits_a_job_of_that_name(self) -> None:
        self.world.submit(manifest(failurePolicy=_policy(3, [])))

    @precondition(lambda self: self.world.clusters())
    @rule()
    def a_person_deletes_the_clusters(self) -> None:
        for name in self.world.clusters():
            self.world.kube.remove(Kind.CLUSTER, NAMESPACE, name)

    @rule(exists=st.booleans())
    def the_claim_comes_or_goes(self, exists: bool) -> None:
        self.world.set_claim(exists)

    @rule(kind=st.sampled_from([Kind.CONFIG_MAP, Kind.SECRET, Kind.POLICY]))
    def a_person_deletes_what_stands_beside_the_cluster(self, kind: Kind) -> None:
        for each, namespace, name in list(self.world.kube.objects):
            if each is kind:
                self.world.kube.remove(kind, namespace, name)

    # Queues, KubeRay, kubelets

    @rule(holds=st.booleans())
    def a_queue_suspends_new_clusters(self, holds: bool) -> None:
        self.world.queue_holds = holds

    @precondition(lambda self: self.world.clusters())
    @rule(suspend=st.booleans())
    def a_queue_evicts_or_admits(self, suspend: bool) -> None:
        for name in self.world.clusters():
            self.world.suspend_cluster(suspend, name)

    @rule(ready=st.booleans())
    def kuberay_makes_pods(self, ready: bool) -> None:
        self.world.run_kuberay(ready)

    @rule()
    def pods_end(self) -> None:
        self.world.run_kubelets()

    @precondition(lambda self: self.world.clusters())
    @rule(role=st.sampled_from(["head", "worker"]))
    def a_pod_is_deleted(self, role: str) -> None:
        for name in self.world.clusters():
            self.world.kill_pod(role, name)

    @precondition(lambda self: self.world.clusters())
    @rule(role=st.sampled_from(["head", "worker"]), ready=st.booleans())
    def a_pod_becomes_ready_or_not(self, role: str, ready: bool) -> None:
        for name in self.world.clusters():
            for pod in self.world.pods(name):
                if f"-{role}-" in pod:
                    status = {"type": "Ready", "status": str(ready)}
                    self.world.set_pod(pod, conditions=[status])

    # The head and the driver

    @precondition(lambda self: self.world.clusters())
    @rule()
    def ray_is_started_again(self) -> None:
        for name in self.world.clusters():
            self.world.head(name).restart()

    @precondition(lambda self: self.world.clusters())
    @rule(is_down=st.booleans())
    def heads_are_lost_or_found(self, is_down: bool) -> None:
        for name in self.world.clusters():
            self.world.head(name).is_down = is_down

    @precondition(lambda self: self.world.clusters())
    @rule(at_once=st.booleans(), stubborn=st.booleans())
    def drivers_are_slow_or_stubborn(self, at_once: bool, stubborn: bool) -> None:
        for name in self.world.clusters():
            head = self.world.head(name)
            head.begins_at_once, head.stubborn = at_once, stubborn

    @precondition(lambda self: self.world.living())
    @rule()
    def drivers_begin(self) -> None:
        for driver in self.world.living():
            if driver.state is SubmissionState.PENDING:
                driver.begin()

    @precondition(lambda self: self._running())
    @rule(step=st.integers(0, 9), saves=st.booleans(), incarnations=st.integers(0, 2))
    def the_driver_advances(self, step: int, saves: bool, incarnations: int) -> None:
        for driver in self._running():
            if driver.report is None or not driver.report.final:
                before = driver.report.restarts if driver.report else 0
                driver.advance(step, checkpoint=step if saves else None)
                assert driver.report is not None
                more = {"restarts": before + incarnations, "steps_repeated": before}
                driver.report = driver.report.model_copy(update=more)

    @precondition(lambda self: self._running())
    @rule(
        code=st.sampled_from(list(ExitCode)),
        reason=st.sampled_from([None, "WorkerLost", "DirtyCluster", "_odd"]),
        lingers=st.booleans(),
    )
    def the_driver_finishes(self, code: ExitCode, reason: str | None, lingers: bool) -> None:
        for driver in self._running():
            if driver.report is None or not driver.report.final:
                driver.finish(code, reason if code else None, "some words", lingers)

    @precondition(lambda self: self._running())
    @rule(code=codes)
    def the_driver_ends(self, code: int) -> None:
        for driver in self._running():
            driver.end(code)

    def _running(self) -> list[FakeDriver]:
        return [each for each in self.world.living() if each.state is SubmissionState.RUNNING]

    # What must hold in the end

    def teardown(self) -> None:
        try:
            self._comes_to_an_end()
        finally:
            self._context.__exit__(None, None, None)

    def _comes_to_an_end(self) -> None:
        world = self.world
        world.heal()
        for _ in range(ROUNDS):
            world.set_claim(True)
            world.run_on()
            if not world.exists() or world.status().phase in SETTLED:
                break
        world.wait(1000)  # longer than the cluster is kept for
        assert world.clusters() == [], world.exists() and world.status()
        world.run_kubelets()
        world.settle()
        assert world.pods_of_all() == [] and world.living() == []
        before = len(world.kube.writes)
        world.wait(600)
        assert world.kube.writes[before:] == []
        if world.exists():
            status = world.status()
            assert status.phase in SETTLED, status
            assert status.cluster is None and status.gpus == 0, status
            waits = world.job()["spec"].get("suspend", False)
            assert waits or status.phase is not JobPhase.SUSPENDED


def test_a_job_survives_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_operator.process.reconciler.reconcile", checked_reconcile)
    run_state_machine_as_test(
        AnyOrder,
        settings=settings(
            max_examples=int(EXAMPLES or examples(40)),
            stateful_step_count=40,
            derandomize=EXAMPLES is None,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=(Phases.generate, Phases.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
