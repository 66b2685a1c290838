"""Pretended heads do what a test says, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rlhf_api.exits import ExitCode
from rlhf_operator.clients.head.http import HttpClient
from rlhf_operator.clients.head.http_head import HttpHeads
from rlhf_operator.clients.head.protocol import (
    HeadRefused,
    HeadUnreachable,
    Submission,
    SubmissionState,
)

from .awaited import PlainHead, now, place
from .fake_head import LINGER_SECONDS, AutoRun, FakeHeads

COMMAND = ["rlhf", "drive"]
TOKEN = "token-of-one-cluster"
OTHER_TOKEN = "token-of-another-cluster"


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def fakes() -> Iterator[FakeHeads]:
    with FakeHeads() as fakes:
        yield fakes


@pytest.fixture
def heads(fakes: FakeHeads) -> Iterator[HttpHeads]:
    client = HttpClient()
    yield HttpHeads(fakes.route, client)
    now(client.close())


def test_heads_know_nothing_of_each_other(fakes: FakeHeads, heads: HttpHeads) -> None:
    first, second = (
        PlainHead(heads.head(place("a", "job-0"), TOKEN)),
        PlainHead(heads.head(place("b", "job-0"), OTHER_TOKEN)),
    )
    first.submit("job-0-0", COMMAND, {})
    assert [each.id for each in first.submissions()] == ["job-0-0"]
    assert second.submissions() == ()
    assert fakes.head("b", "job-0").token == OTHER_TOKEN
    with pytest.raises(HeadRefused):
        PlainHead(heads.head(place("a", "job-0"), OTHER_TOKEN)).submissions()


def test_a_driver_reports_lingers_and_ends_when_it_was_heard(
    fakes: FakeHeads, heads: HttpHeads
) -> None:
    fake, head = fakes.head("a", "job-0"), PlainHead(heads.head(place("a", "job-0"), TOKEN))
    head.submit("job-0-0", COMMAND, {})
    assert head.report() is None
    fake.advance(3, checkpoint=2, metrics={"reward_mean": 0.5})
    report = head.report()
    assert report is not None and (report.step, report.job) == (3, "job")
    assert report.checkpoint is not None and report.checkpoint.step == 2
    fake.finish(ExitCode.USER, reason="InvalidReward")
    final = head.report()
    assert (
        final is not None and final.sequence > report.sequence and final.reason == "InvalidReward"
    )
    assert final.checkpoint == report.checkpoint
    assert head.final_report("job-0-0") == final
    with pytest.raises(HeadUnreachable, match="409"):
        head.acknowledge("job-0-0", final.sequence - 1)
    assert [each.state for each in head.submissions()] == [SubmissionState.RUNNING]
    head.acknowledge("job-0-0", final.sequence)
    [ended] = head.submissions()
    assert (ended.state, ended.exit_code) == (SubmissionState.FAILED, ExitCode.USER)
    assert head.report() is None


def test_a_driver_that_is_told_to_stop_saves_and_one_that_is_stubborn_is_killed(
    fakes: FakeHeads, heads: HttpHeads
) -> None:
    fake, head = fakes.head("a", "job-0"), PlainHead(heads.head(place("a", "job-0"), TOKEN))
    head.submit("job-0-0", COMMAND, {})
    fake.advance(1)
    head.stop("job-0-0")
    saved = head.final_report("job-0-0")
    assert saved is not None and (saved.exit_code, saved.step) == (ExitCode.INTERRUPTED, 1)
    fake.stubborn = True
    head.submit("job-0-1", COMMAND, {})
    head.stop("job-0-1")
    assert head.submissions()[1].state is SubmissionState.RUNNING
    fake.driver.kill()
    assert head.submissions() == (
        Submission("job-0-0", SubmissionState.STOPPED, None, "Job was intentionally stopped."),
        Submission("job-0-1", SubmissionState.STOPPED, None, "Job was intentionally stopped."),
    )
    assert head.final_report("job-0-1") is None


def test_a_new_head_has_forgotten_all(fakes: FakeHeads, heads: HttpHeads) -> None:
    fake, head = fakes.head("a", "job-0"), PlainHead(heads.head(place("a", "job-0"), TOKEN))
    head.submit("job-0-0", COMMAND, {})
    fake.advance(1)
    fake.restart()
    assert head.submissions() == () and head.report() is None
    head.submit("job-0-1", COMMAND, {})
    assert fake.submitted == ["job-0-0", "job-0-1"]


def test_a_head_that_is_down_does_not_answer_until_it_is_back(
    fakes: FakeHeads, heads: HttpHeads
) -> None:
    fake, head = fakes.head("a", "job-0"), PlainHead(heads.head(place("a", "job-0"), TOKEN))
    head.submit("job-0-0", COMMAND, {})
    fake.go_down()
    for attempt in (head.submissions, head.report):
        with pytest.raises(HeadUnreachable):
            attempt()
    fake.advance(4)
    fake.come_back()
    report = head.report()
    assert report is not None and report.step == 4


def test_drivers_may_run_by_the_clock() -> None:
    clock = Clock()
    with FakeHeads(AutoRun(steps=4, seconds=8.0), clock=clock) as fakes:
        client = HttpClient()
        heads = HttpHeads(fakes.route, client)
        head = PlainHead(heads.head(place("a", "job-0"), TOKEN))
        head.submit("job-0-0", COMMAND, {})
        steps = []
        for clock.seconds in (0.0, 1.9, 2.0, 7.9, 8.0):
            report = head.report()
            assert report is not None
            steps.append((report.step, report.final))
        assert steps == [(0, False), (0, False), (1, False), (3, False), (4, True)]
        assert not head.submissions()[0].state.has_ended
        clock.seconds += LINGER_SECONDS
        [done] = head.submissions()
        assert (done.state, done.exit_code) == (SubmissionState.SUCCEEDED, 0)
        assert head.report() is None
        assert head.final_report("job-0-0") is not None
        now(client.close())


def test_many_heads_are_asked_at_once(fakes: FakeHeads, heads: HttpHeads) -> None:
    """Over connections that they share."""

    async def life(number: int) -> int:
        head = heads.head(place("a", f"job-{number}"), f"token-{number}")
        await head.submit(f"job-{number}-0", COMMAND, {})
        fakes.head("a", f"job-{number}").advance(number % 10)
        report = await head.report()
        assert report is not None and report.submission_id == f"job-{number}-0"
        await head.stop(f"job-{number}-0")
        assert await head.final_report(f"job-{number}-0") is not None
        return report.step

    async def lives() -> list[int]:
        return await asyncio.gather(*map(life, range(120)))

    assert now(lives()) == [number % 10 for number in range(120)]
    assert fakes.requests == 120 * 5
