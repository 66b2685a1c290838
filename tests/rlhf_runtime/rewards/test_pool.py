from __future__ import annotations

import logging
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.errors import InvalidReward, RewardError
from rlhf_runtime.rewards.pool import VerifierPool
from rlhf_runtime.rewards.request import MAX_LOST_IN_A_ROW
from rlhf_runtime.rewards.scores import FailedSamples, Failure, name_by_number
from rlhf_runtime.rewards.verifier_handle import MAX_LINES_PER_MINUTE

MakeReward = Callable[..., RewardSpec]
MakeSamples = Callable[..., list[Sample]]


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


def named(failures: Sequence[FailedSamples]) -> list[Failure]:
    names = name_by_number([each.start for each in failures])
    return [failed.with_name(name) for failed, name in zip(failures, names, strict=True)]


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended, whoever may have to collect it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 20.0)[0], f"process {pid} is still running"
    finally:
        os.close(descriptor)


def test_scores_come_in_the_order_of_the_samples(reward: MakeReward, samples: MakeSamples) -> None:
    responses = ["a" * count for count in range(50)]
    with VerifierPool(reward("length", batchSize=3, processes=2, parameters={"factor": 2})) as pool:
        scores = pool.score(samples(*responses))
    assert scores.values.dtype == np.float32
    assert scores.values.tolist() == [2.0 * count for count in range(50)]
    assert scores.valid.all()
    assert (dict(scores.errors), scores.failures, scores.rescored) == ({}, (), 0)


def test_no_samples_need_no_scores(reward: MakeReward) -> None:
    with VerifierPool(reward("length")) as pool:
        assert len(pool.score([]).values) == 0


def test_processes_are_kept_and_work_side_by_side(reward: MakeReward, samples: MakeSamples) -> None:
    with VerifierPool(reward("pid", batchSize=1, processes=2)) as pool:
        pool.wait_until_ready()
        first = {pool.score(samples("a", "b")).values.tobytes() for _ in range(3)}
        pids = set(pool.score(samples(*"abcdefgh")).values.tolist())
    assert len(first) == 1
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_a_verifiers_process_imports_nothing_heavy(
    reward: MakeReward, samples: MakeSamples
) -> None:
    with VerifierPool(reward("heavy")) as pool:
        assert pool.score(samples("a")).values.tolist() == [0.0]


@pytest.mark.parametrize(
    ("act", "told"), [("few", "got 1 values for 2 samples"), ("text", "got str for 2 samples")]
)
def test_a_wrong_count_costs_its_own_batch_only(
    reward: MakeReward, samples: MakeSamples, act: str, told: str
) -> None:
    with VerifierPool(reward("by_response", batchSize=2)) as pool:
        scores = pool.score(samples("ok", "ok", act, "ok", "ok"))
    assert scores.valid.tolist() == [True, True, False, False, True]
    assert scores.values.tolist() == [1, 1, 0, 0, 1]
    assert dict(scores.errors) == {"wrongCount": 2} and scores.rescored == 0
    (failure,) = named(scores.failures)
    assert str(failure).startswith("wrongCount: 2 samples, the first of them sample 2: ")
    assert told in failure.detail


@pytest.mark.parametrize(
    ("act", "fault", "told", "on_error"),
    [
        ("sleep", "timedOut", "timeoutSeconds = 1", "Exclude"),
        ("die", "died", "exit code 7", "Exclude"),
        ("crash", "died", "(?s)SIGSEGV.*about to crash", "Fail"),
    ],
)
def test_a_sample_that_hangs_or_dies_costs_no_other(
    reward: MakeReward, samples: MakeSamples, act: str, fault: str, told: str, on_error: str
) -> None:
    """Its batch is scored again one by one; with onError: Fail nothing is scored after it."""
    seconds = 1 if act == "sleep" else 60
    spec = reward("each_response", batchSize=3, timeoutSeconds=seconds, onError=on_error)
    with VerifierPool(spec) as pool:
        scores = pool.score(samples("ok", "ok", "ok", "ok", act, "ok", "ok"))
        again = pool.score(samples("ok"))
    # Of the second batch, the samples 3 and 5 are scored before the one between them.
    invalid = [4, 6] if on_error == "Fail" else [4]
    assert np.flatnonzero(~scores.valid).tolist() == invalid
    assert dict(scores.errors) == {fault: 1} and scores.rescored == 3
    (failure,) = named(scores.failures)
    assert failure.what == "sample 4" and re.search(told, failure.detail), failure.detail
    assert again.valid.all()


def test_a_batch_that_takes_too_long_only_together_has_all_its_scores(
    reward: MakeReward, samples: MakeSamples
) -> None:
    with VerifierPool(reward("solitary_or_slow", timeoutSeconds=1, onError="Fail")) as pool:
        scores = pool.score(samples("a", "b"))
    assert scores.valid.all() and not scores.errors and scores.rescored == 2
    (failure,) = named(scores.failures)
    assert failure.only_together and "longer than timeoutSeconds = 1" in failure.detail


def test_a_verifier_that_dies_on_every_sample_is_given_up_after_few_processes(
    reward: MakeReward, samples: MakeSamples, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    with VerifierPool(reward("dies", batchSize=8, parameters={"log": str(log)})) as pool:
        scores = pool.score(samples(*["ok"] * 24))
    assert not scores.valid.any() and dict(scores.errors) == {"died": 24}
    assert len(log.read_text().split()) == 1 + MAX_LOST_IN_A_ROW


@pytest.mark.parametrize(
    ("act", "told"), [("raise", "in deeper"), ("exit", "SystemExit: 3"), ("nothing", "NoneType")]
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_row_that_raises_costs_no_other_row(
    reward: MakeReward, samples: MakeSamples, act: str, told: str, processes: int
) -> None:
    """Its batch is scored again one by one, and of the others none is."""
    responses = ["ok"] * 20
    responses[9] = responses[17] = act
    spec = reward("each_response", batchSize=8, processes=processes)
    with VerifierPool(spec) as pool:
        scores = pool.score(samples(*responses))
    assert np.flatnonzero(~scores.valid).tolist() == [9, 17]
    assert scores.values.sum() == 18
    assert dict(scores.errors) == {"raised": 2} and scores.rescored == 8 + 4
    failures = named(scores.failures)
    assert [failure.what for failure in failures] == ["sample 9", "sample 17"]
    assert all(told in failure.detail for failure in failures)
    assert len({failure.kind for failure in failures}) == 1


def test_a_verifier_that_raises_on_every_row_names_the_foremost_only(
    reward: MakeReward, samples: MakeSamples
) -> None:
    with VerifierPool(reward("by_response", batchSize=16, processes=2)) as pool:
        scores = pool.score(samples(*["raise"] * 40))
    assert not scores.valid.any() and dict(scores.errors) == {"raised": 40}
    assert [(failure.start, failure.size) for failure in scores.failures] == [
        (number, 1) for number in range(5)
    ]


def test_a_sample_that_hangs_in_a_batch_that_raises_costs_no_other(
    reward: MakeReward, samples: MakeSamples
) -> None:
    with VerifierPool(reward("each_response", timeoutSeconds=1)) as pool:
        scores = pool.score(samples("ok", "raise", "ok", "sleep", "ok", "ok"))
    assert scores.valid.tolist() == [True, False, True, False, True, True]
    assert dict(scores.errors) == {"raised": 1, "timedOut": 1}
    assert "own mistake" in scores.failures[0].detail
    assert scores.failures[1].fault == "timedOut"


def test_a_verifier_that_raises_on_rows_together_only_is_told_of(
    reward: MakeReward, samples: MakeSamples
) -> None:
    """Every row has a score then, also where none may fail."""
    with VerifierPool(reward("solitary", onError="Fail", batchSize=4)) as pool:
        scores = pool.score(samples(*"abcdef"))
    assert scores.valid.all() and not scores.errors and scores.rescored == 6
    first, second = named(scores.failures)
    assert first.only_together and second.only_together
    assert first.what == "4 samples, the first of them sample 0" and "together" in first.detail
    assert second.what == "2 samples, the first of them sample 4"


def test_a_verifier_with_state_sees_rows_of_a_failed_batch_again(
    reward: MakeReward, samples: MakeSamples
) -> None:
    """What it keeps is its own affair: it is called with all of them, then with each."""
    with VerifierPool(reward("counting", batchSize=3)) as pool:
        assert pool.score(samples("ok", "raise", "ok")).values.tolist() == [4.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("response", "fault"),
    [
        ("nan", "nonFinite"),
        ("infinite", "nonFinite"),
        ("huge", "nonFinite"),
        ("word", "notANumber"),
    ],
)
def test_a_bad_value_costs_its_own_sample_only(
    reward: MakeReward, samples: MakeSamples, response: str, fault: str
) -> None:
    with VerifierPool(reward("by_response")) as pool:
        scores = pool.score(samples("ok", response, "ok"))
    assert scores.valid.tolist() == [True, False, True]
    assert scores.values.tolist() == [1, 0, 1]
    assert dict(scores.errors) == {fault: 1}


def test_a_verifier_may_abstain_on_samples(reward: MakeReward, samples: MakeSamples) -> None:
    with VerifierPool(reward("by_response", onError="Fail")) as pool:
        scores = pool.score(samples("ok", "none", "ok", "none"))
    assert scores.abstained.tolist() == [False, True, False, True]
    assert scores.valid.tolist() == [True, False, True, False]
    assert (scores.values.tolist(), dict(scores.errors), scores.failures) == ([1, 0, 1, 0], {}, ())


def test_a_process_that_died_idle_costs_nothing(reward: MakeReward, samples: MakeSamples) -> None:
    with VerifierPool(reward("pid")) as pool:
        pid = int(pool.score(samples("a")).values[0])
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        scores = pool.score(samples("a"))
        assert scores.valid.all()
        assert int(scores.values[0]) != pid


def test_a_function_that_cannot_be_loaded_is_an_error_of_its_own(reward: MakeReward) -> None:
    with VerifierPool(reward("nowhere:score", name="correct")) as pool:
        with pytest.raises(InvalidReward, match="correct.*no such module: got nowhere") as caught:
            pool.wait_until_ready()
        assert (caught.value.reason, int(caught.value.exit_code)) == ("InvalidReward", 3)
        with pytest.raises(InvalidReward):
            pool.score([])


@pytest.mark.parametrize(
    ("module", "seconds", "told"),
    [
        ("import time; time.sleep(3600)", 0.5, "longer than 0.5 s"),
        ("import os; os._exit(9)", 60.0, "exit code 9"),
    ],
)
def test_a_module_that_never_loads_is_given_up(
    reward: MakeReward, verifiers: Path, module: str, seconds: float, told: str
) -> None:
    (verifiers / "stuck.py").write_text(module)
    pool = VerifierPool(reward("stuck:score"), start_seconds=seconds)
    with pool, pytest.raises(InvalidReward, match=told):
        pool.wait_until_ready()


def test_what_a_verifier_prints_goes_to_the_log(
    reward: MakeReward,
    samples: MakeSamples,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO, logger="rlhf_runtime.rewards")
    with VerifierPool(reward("talkative", name="chatty")) as pool:
        assert pool.score(samples("a")).values.tolist() == [1.0]
    lines = [record.getMessage() for record in caplog.records]
    for text in ("hello from the verifier", "and a complaint", "raw output"):
        assert any(line.startswith("chatty[") and line.endswith(text) for line in lines)
    assert capfd.readouterr().out == ""


def test_a_verifier_that_prints_much_fills_no_log_and_is_not_slowed_down(
    reward: MakeReward, samples: MakeSamples, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rlhf_runtime.rewards")
    with VerifierPool(reward("flooding", name="flood", timeoutSeconds=60)) as pool:
        assert pool.score(samples("a")).values.tolist() == [1.0]
        scores = pool.score(samples("die"))
    (failure,) = named(scores.failures)
    assert "exit code 7; it last printed:" in failure.detail and "99999 xxx" in failure.detail
    lines = [text for text in map(logging.LogRecord.getMessage, caplog.records) if " xxx" in text]
    assert MAX_LINES_PER_MINUTE <= len(lines) <= 2 * MAX_LINES_PER_MINUTE, "a minute may end"
    assert "flood[" in caplog.text and "further lines of this minute are left out" in caplog.text


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("alarming", 0.5),
        ("forking", 2.0),
        ("forking_on", 2.0),
        ("moving", 1.0),
        ("threading_", 2.0),
        ("with_torch", 1.0),
    ],
)
def test_a_verifier_may_do_with_its_process_as_it_likes(
    reward: MakeReward, samples: MakeSamples, function: str, expected: float
) -> None:
    with VerifierPool(reward(function, timeoutSeconds=120)) as pool:
        for _ in range(2):
            assert pool.score(samples("ab", "cd")).values.tolist() == [expected] * 2


def test_what_a_verifier_has_started_ends_with_it(reward: MakeReward, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with VerifierPool(reward("with_child", timeoutSeconds=2)) as pool:
        scores = pool.score([Sample("p", "r", {"pids": str(pids)}, True)])
    assert dict(scores.errors) == {"timedOut": 1}
    for pid in map(int, pids.read_text().split()):
        wait_for_end(pid)


def test_closing_ends_a_request_under_way(reward: MakeReward, samples: MakeSamples) -> None:
    pool = VerifierPool(reward("by_response", timeoutSeconds=3600))
    pool.wait_until_ready()
    request, queued = pool.submit(samples("sleep")), pool.submit(samples("ok"))
    pool.close()
    pool.close()
    for asked in (request, queued, pool.submit(samples("ok"))):
        with pytest.raises(RewardError, match="was closed while it was in use"):
            asked.result(timeout=0)


def test_a_process_that_is_free_begins_with_the_next_request(
    reward: MakeReward, samples: MakeSamples, tmp_path: Path
) -> None:
    """The first request's batch, on one process, ends once the second request's has been scored."""
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    with VerifierPool(reward("until_there", processes=2)) as pool:
        first = pool.submit([Sample("p", str(ended), {"touch": str(begun)}, True)])
        second = pool.submit([Sample("p", str(begun), {"touch": str(ended)}, True)])
        assert second.result().valid.all() and first.result().valid.all()


def test_a_request_that_fails_ends_there_and_leaves_the_others_alone(
    reward: MakeReward, samples: MakeSamples
) -> None:
    with VerifierPool(reward("by_response", batchSize=1, onError="Fail")) as pool:
        failing, good = pool.submit(samples("ok", "ok", "raise")), pool.submit(samples("ok"))
        # Single samples start far apart: the last one before the second.
        assert failing.result().valid.tolist() == [True, False, False]
        assert dict(failing.result().errors) == {"raised": 1}
        assert good.result().values.tolist() == [1.0]


def test_closing_does_not_wait_for_a_slow_start(reward: MakeReward, verifiers: Path) -> None:
    (verifiers / "slow.py").write_text("import time; time.sleep(3600)")
    start = time.monotonic()
    VerifierPool(reward("slow:score")).close()
    assert time.monotonic() - start < 10


def test_processes_do_not_outlive_a_killed_owner(verifiers: Path) -> None:
    program = """
        import sys
        from rlhf_api.spec.rewards import RewardSpec
        from rlhf_runtime.rewards import Sample
        from rlhf_runtime.rewards.pool import VerifierPool
        spec = {"function": {"entrypoint": "my_verifiers:FUNCTION", "timeoutSeconds": 3600}}
        def pool(function):
            text = spec["function"]["entrypoint"].replace("FUNCTION", function)
            return VerifierPool(RewardSpec(function={**spec["function"], "entrypoint": text}))
        idle, busy = pool("pid"), pool("by_response")
        busy.wait_until_ready()
        sleeping = busy.submit([Sample("p", "sleep", {}, True)])
        pids = [idle.score([Sample("p", "r", {}, True)]).values[0]]
        pids += [process.pid for process in busy._processes]
        print(*map(int, pids), flush=True)
        sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 2
        assert all(psutil.pid_exists(pid) for pid in pids)
        owner.kill()
    for pid in pids:
        wait_for_end(pid)


def test_a_warm_pool_scores_a_batch_in_milliseconds(
    reward: MakeReward, samples: MakeSamples
) -> None:
    batch = samples(*["012345"] * 512, answer="012345")
    times = []
    with VerifierPool(reward("rlhf_runtime.rewards.exact_match:score")) as pool:
        for _ in range(10):
            start = time.perf_counter()
            assert pool.score(batch).values.sum() == 512
            times.append(time.perf_counter() - start)
    assert min(times) < 0.05
