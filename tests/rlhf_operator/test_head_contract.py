"""What the operator may expect of a head: a pretended one and one of Ray behave alike."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.on_cluster import FINAL_REPORT
from rlhf_api.report import StatusReport
from rlhf_operator.clients.head.http_head import JOBS_BYTES, REPORT_BYTES
from rlhf_operator.clients.head.protocol import (
    HeadRefused,
    HeadUnreachable,
    Submission,
    SubmissionState,
)

from ..waiting import wait_until
from .awaited import PlainHead, now
from .real_stage import READY_SECONDS, real_stage
from .stage import Play, Stage, direct_stage, fake_stage

KEYS_OF_RAY = {
    *("type", "job_id", "submission_id", "driver_info", "status", "entrypoint", "message"),
    *("error_type", "start_time", "end_time", "metadata", "runtime_env", "driver_exit_code"),
    *("driver_agent_http_address", "driver_node_id"),
}


@pytest.fixture(
    scope="module", params=["fake", "direct", pytest.param("real", marks=pytest.mark.ray)]
)
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    if request.param == "fake":
        with fake_stage() as fake:
            yield fake
    elif request.param == "direct":
        with direct_stage() as direct:
            yield direct
    else:
        with real_stage(tmp_path_factory.mktemp("head")) as real:
            yield real


@pytest.fixture
def play(stage: Stage) -> Play:
    """A play of its own for each test: a head of Ray never forgets a submission."""
    return stage.play(f"job-0-{uuid.uuid4().hex}")


def submit(play: Play) -> None:
    play.head.submit(play.id, play.command, {})


def found(head: PlainHead, id: str) -> Submission:
    """What the head tells of a submission."""
    [it] = [each for each in head.submissions() if each.id == id]
    return it


def wait_for(play: Play, state: SubmissionState) -> Submission:
    wait_until(
        lambda: found(play.head, play.id).state is state,
        READY_SECONDS,
        f"{play.id} {state}, not {found(play.head, play.id)}",
    )
    return found(play.head, play.id)


def end(play: Play, code: int, output: str = "") -> Submission:
    """What is told of a driver that has ended by itself."""
    play.end(code, output)
    return wait_for(play, SubmissionState.FAILED if code else SubmissionState.SUCCEEDED)


def report_of(play: Play, code: ExitCode | None = None, sequence: int = 0) -> StatusReport:
    return StatusReport(
        job="job",
        submission_id=play.id,
        sequence=sequence,
        phase="Train",
        step=3,
        total_steps=10,
        metrics={"reward_mean": 0.25},
        final=code is not None,
        exit_code=code,
        message="é\u2028日",
    )


def last_line(report: StatusReport) -> str:
    return f"{FINAL_REPORT}{report.model_dump_json(by_alias=True)}\n"


def test_a_driver_is_submitted_runs_and_ends(play: Play) -> None:
    submit(play)
    assert not found(play.head, play.id).state.has_ended
    play.seen()
    running = wait_for(play, SubmissionState.RUNNING)
    assert running.exit_code is None
    done = end(play, 0)
    assert (done.state, done.exit_code) == (SubmissionState.SUCCEEDED, 0)


@pytest.mark.parametrize("code", [1, 3, 130, -9])
def test_a_failure_tells_its_exit_code(play: Play, code: int) -> None:
    submit(play)
    failed = end(play, code, "one line\nanother\n")
    assert (failed.state, failed.exit_code) == (SubmissionState.FAILED, code)
    assert failed.message and "\n" not in failed.message


def test_the_command_and_the_environment_arrive_as_they_are(stage: Stage) -> None:
    words = ("two words", "a'b\"c", "$HOME", "`id`", "", "é*")
    play = stage.play("job-0-words", *words)
    play.head.submit(play.id, play.command, {"RLHF_TEST_VALUE": "a b $c 'd'"})
    seen, environment = play.seen()
    assert tuple(seen) == words
    assert environment["RLHF_TEST_VALUE"] == "a b $c 'd'"
    end(play, 0)


def test_submitting_an_id_again_leaves_the_first_driver_alone(play: Play) -> None:
    submit(play)
    play.head.submit(play.id, ["false"], {})
    play.seen()
    assert wait_for(play, SubmissionState.RUNNING)
    assert end(play, 0).exit_code == 0
    play.head.submit(play.id, ["false"], {})
    assert found(play.head, play.id).state is SubmissionState.SUCCEEDED


def test_a_driver_that_is_told_to_stop_may_save_before_it_ends(play: Play) -> None:
    submit(play)
    saved = report_of(play, ExitCode.INTERRUPTED)
    play.on_stop(last_line(saved))
    play.head.stop(play.id)
    stopped = wait_for(play, SubmissionState.STOPPED)
    assert stopped.exit_code is None
    assert play.head.final_report(play.id) == saved


def test_a_driver_that_does_not_obey_is_killed(play: Play) -> None:
    submit(play)
    play.on_stop(None)
    play.head.stop(play.id)
    play.head.stop(play.id)
    play.patience_ends()
    wait_for(play, SubmissionState.STOPPED)
    assert play.head.final_report(play.id) is None


def test_stopping_what_has_ended_or_never_was_is_fine(play: Play) -> None:
    play.head.stop("job-7-unknown")
    submit(play)
    end(play, 0)
    play.head.stop(play.id)
    assert found(play.head, play.id).state is SubmissionState.SUCCEEDED


def test_the_final_report_is_found_behind_megabytes_of_output(play: Play) -> None:
    submit(play)
    report = report_of(play, ExitCode.DONE)
    noise = "step 1 of a run that talks a lot\n" * (3 * JOBS_BYTES // 32)
    end(play, 0, noise + last_line(report))
    assert play.head.final_report(play.id) == report


def test_the_final_report_is_found_behind_a_line_of_megabytes(play: Play) -> None:
    """Progress bars write such lines."""
    submit(play)
    report = report_of(play, ExitCode.DONE)
    end(play, 0, "\r50 %" * (REPORT_BYTES // 2) + "\n" + last_line(report))
    assert play.head.final_report(play.id) == report


def test_lines_after_the_final_report_do_no_harm(play: Play) -> None:
    submit(play)
    report = report_of(play, ExitCode.USER)
    end(play, 3, last_line(report) + "resource_tracker: there appear to be leaked objects\n" * 2)
    assert play.head.final_report(play.id) == report


def test_output_without_a_final_report_has_none(play: Play) -> None:
    assert play.head.final_report("job-7-unknown") is None
    submit(play)
    others = report_of(play, ExitCode.DONE).model_copy(update={"submission_id": "job-0-other"})
    output = [
        f"{FINAL_REPORT}{{}}\n",
        f"{FINAL_REPORT}what a user may print\n",
        last_line(others),
        last_line(report_of(play)),
    ]
    end(play, 1, "".join(output))
    assert play.head.final_report(play.id) is None


def test_an_endless_last_line_is_no_final_report(play: Play) -> None:
    submit(play)
    end(play, 0, FINAL_REPORT + "x" * (2 * REPORT_BYTES))
    assert play.head.final_report(play.id) is None


def test_what_a_driver_reports_is_read_until_it_ends(play: Play) -> None:
    submit(play)
    assert play.head.report() is None
    for sequence in range(2):
        report = report_of(play, sequence=sequence)
        play.serve(report)
        assert play.head.report() == report
    end(play, 0)
    assert play.head.report() is None


def test_the_final_report_can_be_acknowledged(play: Play) -> None:
    submit(play)
    final = report_of(play, ExitCode.DONE, sequence=7)
    play.serve(final)
    assert play.head.report() == final
    play.head.acknowledge(play.id, 7)
    assert play.acknowledged() == (play.id, 7)
    end(play, 0)
    play.head.acknowledge(play.id, 7)


def test_another_token_is_refused_and_never_shown(stage: Stage, play: Play) -> None:
    submit(play)
    play.serve(report_of(play))
    wrong = "another-operators-token-42"
    head = stage.play(play.id, token=wrong).head
    attempts: list[Callable[[], object]] = [
        head.submissions,
        head.report,
        lambda: head.submit("job-0-refused", ["true"], {}),
        lambda: head.stop(play.id),
        lambda: head.final_report(play.id),
        lambda: head.acknowledge(play.id, 0),
    ]
    for attempt in attempts:
        with pytest.raises(HeadRefused) as refused:
            attempt()
        assert wrong not in str(refused.value)
    assert all(each.id != "job-0-refused" for each in play.head.submissions())
    assert wait_for(play, SubmissionState.RUNNING)
    end(play, 0)


def test_a_head_that_does_not_answer_is_unreachable(stage: Stage) -> None:
    head = stage.nowhere()
    attempts: list[Callable[[], object]] = [
        head.submissions,
        lambda: head.submit("job-0-0", ["true"], {}),
        lambda: head.stop("job-0-0"),
        lambda: head.final_report("job-0-0"),
    ]
    for attempt in attempts:
        with pytest.raises(HeadUnreachable):
            attempt()


def test_entries_have_the_keys_of_ray(stage: Stage, play: Play) -> None:
    submit(play)
    end(play, 3)
    answer = now(stage.client.exchange("GET", stage.jobs, f"/api/jobs/{play.id}", JOBS_BYTES))
    entry = json.loads(answer.body)
    assert set(entry) == KEYS_OF_RAY
    assert entry["runtime_env"] == {"env_vars": {}}
    assert entry["error_type"] == "JOB_ENTRYPOINT_COMMAND_ERROR"
