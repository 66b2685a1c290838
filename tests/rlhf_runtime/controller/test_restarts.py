import errno

import pytest

from rlhf_api.errors import RlhfError
from rlhf_api.spec.failure import FailurePolicy
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.disk_space import with_cause
from rlhf_runtime.errors import (
    CheckpointFailed,
    FolderInUse,
    NodeLost,
    NoSpace,
    NotEnoughResources,
    NotLoaded,
    OutOfMemory,
    StaleWeights,
    UserCodeFailed,
    WorkerLost,
    WorkerRaised,
)
from rlhf_runtime.telemetry.errors import CannotRecord

LOST = WorkerLost("a worker died")


def restarts_of(**policy: object) -> Restarts:
    return Restarts(FailurePolicy.model_validate({"backoffSeconds": 10, **policy}))


def test_the_first_restart_waits_for_nothing_and_the_wait_doubles_up_to_ten_minutes() -> None:
    restarts = restarts_of(maxRestarts=10)
    waits = [restarts.next_delay(LOST, 0) for _ in range(10)]
    assert waits == [0, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert restarts.next_delay(LOST, 0) is None
    assert restarts.number == 10


def test_a_new_checkpoint_begins_the_count_anew() -> None:
    restarts = restarts_of(maxRestarts=2)
    assert [restarts.next_delay(LOST, 5) for _ in range(3)] == [0, 10, None]
    assert restarts.next_delay(LOST, 6) == 0
    assert restarts.next_delay(LOST, 6) == 10
    assert restarts.next_delay(LOST, 6) is None


def test_lost_nodes_have_a_limit_of_their_own_until_a_new_checkpoint() -> None:
    restarts, gone = restarts_of(maxRestarts=1, maxDisruptions=2), NodeLost("drained")
    assert [restarts.next_delay(error, 5) for error in (gone, LOST, gone)] == [0, 10, 20]
    assert restarts.next_delay(gone, 5) is None and restarts.next_delay(LOST, 5) is None
    assert [restarts.next_delay(gone, 6) for _ in range(3)] == [0, 10, None]


def test_a_rule_may_count_lost_nodes_as_failures() -> None:
    rule = {"onReason": "NodeLost", "action": "Restart"}
    restarts = restarts_of(maxRestarts=1, maxDisruptions=9, rules=[rule])
    assert [restarts.next_delay(NodeLost("drained"), 5) for _ in range(2)] == [0, None]


@pytest.mark.parametrize(
    "error",
    [
        UserCodeFailed("x"),
        FolderInUse("x"),
        StaleWeights("x"),
        NotLoaded("x"),
        CheckpointFailed("x"),
        NoSpace("x"),
        NotEnoughResources("x"),
    ],
)
def test_what_comes_again_is_not_tried_again(error: RlhfError) -> None:
    assert restarts_of().next_delay(error, 0) is None


def test_a_full_disk_is_tried_again_as_space_was_waited_for() -> None:
    restarts = restarts_of(maxRestarts=2)
    full = with_cause(CannotRecord("x"), OSError(errno.ENOSPC, "No space left on device"))
    assert [restarts.next_delay(full, 0) for _ in range(3)] == [0, 10, None]
    assert restarts.next_delay(CannotRecord("x"), 1) is None


def test_a_fault_of_ours_is_tried_again_unless_it_repeats_itself() -> None:
    restarts = restarts_of()
    assert restarts.next_delay(WorkerRaised("KeyError: a\n  stack 1"), 3) == 0
    assert restarts.next_delay(WorkerRaised("KeyError: b\n  stack 2"), 3) == 10
    assert restarts.next_delay(WorkerRaised("KeyError: b\n  stack 3"), 3) is None


def test_memory_that_runs_out_twice_is_not_tried_a_third_time() -> None:
    restarts = restarts_of()
    texts = [f"rank {n} ran out of memory in actor.train, step 7: got 5.0{n} GiB" for n in (0, 1)]
    assert restarts.next_delay(OutOfMemory(texts[0]), 3) == 0
    assert restarts.next_delay(OutOfMemory(texts[1]), 3) is None


def test_the_checkpoint_before_the_first_step_is_a_new_one() -> None:
    restarts = restarts_of(maxRestarts=1)
    assert [restarts.next_delay(LOST, step) for step in (-1, -1, 0, 0)] == [0, None, 0, None]


def test_a_rule_tries_again_what_repeats_itself() -> None:
    restarts = restarts_of(rules=[{"onReason": "WorkerRaised", "action": "Restart"}])
    raised = WorkerRaised("KeyError: a")
    assert [restarts.next_delay(raised, 3) for _ in range(3)] == [0, 10, 20]


def test_rules_decide_first() -> None:
    rules = [
        {"onReason": "WorkerLost", "action": "Fail"},
        {"onExitCodes": [3], "action": "RestartIgnoringLimit"},
    ]
    restarts = restarts_of(maxRestarts=1, rules=rules)
    assert restarts.next_delay(LOST, 0) is None
    assert [restarts.next_delay(UserCodeFailed("x"), 0) for _ in range(4)] == [0, 10, 20, 40]


def test_what_counts_against_no_limit_waits_longer_and_longer_too() -> None:
    restarts = restarts_of(rules=[{"onReason": "WorkerLost", "action": "RestartIgnoringLimit"}])
    waits = [restarts.next_delay(LOST, 7) for _ in range(2000)]
    assert waits[:4] == [0, 10, 20, 40] and set(waits[8:]) == {600}
