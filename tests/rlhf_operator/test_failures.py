"""What follows from a failure, and when."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.spec.failure import FailurePolicy
from rlhf_api.status import RestartStatus
from rlhf_operator.decide.failures import Failure, Verdict, backoff_seconds, decide_restart
from rlhf_operator.decide.settings import Settings

NONE_YET = RestartStatus()


def policy(**fields: Any) -> FailurePolicy:
    return FailurePolicy.model_validate(fields)


def judge(failure: Failure, rules: FailurePolicy, restarts: int = 0) -> Verdict:
    return decide_restart(failure, rules, RestartStatus(since_checkpoint=restarts))


@pytest.mark.parametrize(
    ("code", "restarts"),
    [(1, False), (2, False), (3, False), (4, True), (130, True), (137, True), (None, True)],
)
def test_the_exit_code_decides(code: int | None, restarts: bool) -> None:
    assert judge(Failure("Any", "words", code), policy()).restarts is restarts


def test_a_disk_that_stays_full_is_not_tried_again_unless_a_rule_says_so() -> None:
    full = Failure("NoSpace", "words", 4)
    assert judge(full, policy()) == Verdict(False)
    assert judge(full, policy(rules=[{"onReason": "NoSpace", "action": "Restart"}])).restarts


def test_as_many_restarts_as_allowed_and_not_one_more() -> None:
    lost = Failure("WorkerLost", "words", 4)
    assert [judge(lost, policy(maxRestarts=2), n).restarts for n in range(4)] == [
        *(True, True, False, False)
    ]
    assert not judge(lost, policy(maxRestarts=0)).restarts
    assert "maxRestarts allows 2" in judge(lost, policy(maxRestarts=2), 2).obstacle


def test_the_first_rule_that_matches_decides() -> None:
    rules = policy(
        maxRestarts=0,
        rules=[
            {"onReason": "WorkerLost", "action": "Fail"},
            {"onExitCodes": [4, 9], "action": "RestartIgnoringLimit"},
            {"onReason": "MissingData", "action": "Restart"},
        ],
    )
    assert judge(Failure("WorkerLost", "", 4), rules) == Verdict(False)
    assert judge(Failure("Other", "", 9), rules) == Verdict(True, counts=False)
    assert not judge(Failure("MissingData", "", 3), rules).restarts  # the limit holds for Restart
    assert not judge(Failure("Other", "", 3), rules).restarts  # no rule: the exit code
    assert not judge(Failure("HeadLost", ""), rules).restarts  # no exit code, no rule for it


def test_restarts_that_do_not_count_leave_those_that_do() -> None:
    lost = Failure("WorkerLost", "words", 4)
    uncounted = RestartStatus(since_checkpoint=1, in_a_row=9, total=20)
    assert decide_restart(lost, policy(maxRestarts=2), uncounted) == Verdict(True)
    assert not decide_restart(lost, policy(maxRestarts=1), uncounted).restarts


def test_disruptions_have_a_limit_of_their_own() -> None:
    gone = Failure("NodeLost", "words", is_disruption=True)
    disrupted = RestartStatus(since_checkpoint=5, disruptions_since_checkpoint=1)
    bounds = policy(maxRestarts=5, maxDisruptions=2)
    expected = Verdict(True, counts=False, is_disruption=True)
    assert decide_restart(gone, bounds, disrupted) == expected
    often = RestartStatus(disruptions_since_checkpoint=2)
    verdict = decide_restart(gone, bounds, often)
    assert not verdict.restarts and "maxDisruptions allows 2" in verdict.obstacle
    assert decide_restart(Failure("HeadLost", "words"), bounds, often) == Verdict(True)


def test_a_rule_decides_about_disruptions_too() -> None:
    gone = Failure("NodeLost", "words", is_disruption=True)
    rules = [{"onReason": "NodeLost", "action": "Restart"}]
    assert decide_restart(gone, policy(rules=rules), NONE_YET) == Verdict(True)
    assert not decide_restart(gone, policy(rules=rules, maxRestarts=0), NONE_YET).restarts


def test_the_first_restart_waits_for_nothing_and_later_waits_double_up_to_a_limit() -> None:
    waits = [backoff_seconds(policy(backoffSeconds=30), n, Settings()) for n in range(1, 10)]
    assert waits == [0, 30, 60, 120, 240, 480, 600, 600, 600]
    assert backoff_seconds(policy(backoffSeconds=2**31 - 1), 1, Settings()) == 0
    assert backoff_seconds(policy(backoffSeconds=2**31 - 1), 2, Settings()) == 600
    assert backoff_seconds(policy(backoffSeconds=2**31 - 1), 2**31 - 1, Settings()) == 600
