"""What people read of a job: the table, the page, the line, ages, events and pods."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from rlhf_api.exits import ExitCode
from rlhf_cli.cluster.job_page import job_page
from rlhf_cli.cluster.job_text import age, job_line, jobs_table, phase_text
from rlhf_cli.cluster.jobs import Job, plain_name
from rlhf_cli.cluster.watching import combined_exit_code
from rlhf_cli.commands.cancel import cancel_text
from rlhf_cli.commands.suspend import resume_text, suspend_text

from .objects import RUNNING, condition, job

NOW = datetime(2026, 1, 2, 3, 30, tzinfo=UTC)
FAILED = {"observedGeneration": 1, "phase": "Failed", "reason": "InvalidReward", "message": "no x"}

DRIVER = {"submissionId": "sort-1-0", "attempt": 1, "restart": 0}


def page(job: Job, *, short: bool = False) -> str:
    console = Console(file=io.StringIO(), width=140, highlight=False)
    console.print(job_page(job, NOW, short=short))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (190, "3m10s"),
        (599, "9m59s"),
        (600, "10m"),
        (7199, "119m"),
        (7200, "2h"),
        (12000, "3h20m"),
        (36000, "10h"),
        (172800, "2d"),
        (277200, "3d5h"),
        (86400 * 400, "400d"),
    ],
)
def test_ages_are_written_as_kubectl_does(seconds: int, text: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == text


def test_what_is_in_the_future_by_another_clock_is_no_time_ago() -> None:
    assert age(NOW + timedelta(seconds=5), NOW) == "0s"


def test_the_table_has_a_line_for_each_job() -> None:
    jobs = [job(RUNNING), job({"phase": "Pending"}, name="a-job-of-long-name")]
    assert jobs_table(jobs, NOW, with_namespaces=False) == (
        "NAME                 PHASE     STEP      REWARD   GPUS   RESTARTS   AGE\n"
        "sort                 Running   120/500   0.71     8      0          30m\n"
        "a-job-of-long-name   Pending                      0      0          30m\n"
    )
    assert jobs_table(jobs, NOW, with_namespaces=True).splitlines()[1].startswith("team        ")


def test_the_page_of_a_running_job_says_how_far_it_is() -> None:
    restarts = {"drivers": 1, "incarnations": 2, "total": 3, "stepsRepeated": 20}
    plan = {"placement": "Colocated", "peakMemoryBytes": 61 * 2**30, "summary": "actor on 8"}
    conditions = [condition("Ready", "False", "Training", "step 120 of 500")]
    more = {"restarts": restarts, "plan": plan, "conditions": conditions}
    lines = page(job(RUNNING | more)).splitlines()
    assert lines[0] == "sort   Running   namespace team, 30m old"
    assert "120/500  24 %  Train  4 h 22 min left" in lines[1]
    assert lines[2:] == [
        "metrics      reward 0.71   tokens/s 51,200   kl to the reference (actor) 0.02100",
        "plan         Colocated, 61.0 GiB per device: actor on 8",
        "GPUs         8 in use, 2.0 GPU hours so far, on RayCluster sort-1",
        "restarts     3: 2 of workers, 1 of the driver; 20 steps repeated",
        "checkpoint   step 100, /rlhf/run/checkpoints/step-00000100",
        "conditions   Ready  False  20m  Training: step 120 of 500",
    ]


def test_the_page_says_how_old_the_checkpoint_is_and_that_newer_ones_fail() -> None:
    saved = {"step": 100, "path": "/step-100", "time": "2026-01-02T03:10:00Z"}
    failing = condition("CheckpointsFailing", "True", "NoSpace", "no space")
    status = RUNNING | {"checkpoint": saved, "checkpointFailures": 2, "conditions": [failing]}
    lines = page(job(status)).splitlines()
    assert "checkpoint   step 100, 20m old, /step-100" in lines
    text = "not saved    2 checkpoints could not be written"
    assert f"{text}; they still fail, see the conditions" in lines
    assert text in page(job(status | {"conditions": []})).splitlines()
    assert "not saved" not in page(job(RUNNING))


def test_a_page_that_is_drawn_again_and_again_leaves_out_what_does_not_change() -> None:
    places = {"artifacts": {"model": "pvc://c/sort/model"}}
    with_more = job(RUNNING | places | {"conditions": [condition("Ready", "False", "Training")]})
    assert "conditions" in page(with_more) and "pvc://" in page(with_more)
    assert "conditions" not in page(with_more, short=True)
    assert "pvc://c/sort/model" in page(job(RUNNING | places | {"phase": "Succeeded"}), short=True)


def test_what_is_told_as_the_reason_is_not_told_again() -> None:
    stalled = condition("Stalled", "True", "NoRoom", "9 GiB of 8")
    status = {"reason": "DoesNotFit", "message": "9 GiB of 8", "conditions": [stalled]}
    seen = page(job({"observedGeneration": 1} | status))
    assert "DoesNotFit: 9 GiB of 8" in seen and seen.count("9 GiB of 8") == 1
    assert "NoRoom" in seen
    assert "NoRoom: 9 GiB of 8" in page(job({"observedGeneration": 0} | status))


def test_the_page_of_a_failed_job_says_why() -> None:
    text = page(job(RUNNING | FAILED))
    assert "why          InvalidReward: no x" in text
    assert "left" not in text


def test_a_job_that_nobody_looks_at_says_so() -> None:
    assert "the operator has not reconciled this version of the job yet" in page(
        job({"phase": "Pending"})
    )


def test_an_earlier_run_in_the_jobs_folder_is_shown() -> None:
    text = "the folder had been used by an earlier job of this name"
    assert f"folder       {text}" in page(job({**RUNNING, "takeover": text}))
    assert "folder  " not in page(job(RUNNING))


def test_the_next_restart_is_announced() -> None:
    waiting = {"restarts": {"total": 1, "clusters": 1, "nextTime": "2026-01-02T03:30:45Z"}}
    assert "1: 1 of the cluster; the next in 45s" in page(job(RUNNING | waiting))


def test_texts_of_others_are_shown_as_they_are() -> None:
    hostile = {"observedGeneration": 1, "reason": "Odd", "message": "[bold]x[/bold] [link"}
    assert "Odd: [bold]x[/bold] [link" in page(job(hostile))


def test_the_line_names_its_fields_and_quotes_what_has_spaces() -> None:
    assert job_line(job(RUNNING)) == (
        "sort phase=Running step=120/500 doing=Train reward=0.71 tokens_per_second=51200 "
        "left='4 h 22 min' checkpoint=100"
    )
    assert job_line(job(FAILED)) == "sort phase=Failed reason=InvalidReward message='no x'"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (RUNNING, None),
        ({"phase": "Suspended", "observedGeneration": 1}, None),
        ({"phase": "Succeeded", "observedGeneration": 1}, 0),
        (FAILED, 4),
        *[
            (
                FAILED
                | {"driver": {"submissionId": "s", "attempt": 0, "restart": 0, "exitCode": c}},
                e,
            )
            for c, e in [(0, 4), (1, 1), (2, 2), (3, 3), (4, 4), (130, 4), (137, 4)]
        ],
    ],
)
def test_a_job_ends_a_command_with_its_own_code(status: dict[str, Any], code: int | None) -> None:
    assert job(status).exit_code == code


def test_a_job_that_cannot_go_on_without_a_change_ends_it_with_two() -> None:
    stalled = {"conditions": [condition("Stalled", "True", "DoesNotFit", "9 GiB of 8")]}
    assert job({"observedGeneration": 1} | stalled).exit_code == 2
    assert job({"observedGeneration": 0} | stalled).exit_code is None  # it was changed since


def test_of_several_jobs_the_first_that_failed_counts() -> None:
    done = job({"phase": "Succeeded"})
    assert combined_exit_code([done, job(FAILED), done]) == ExitCode.RETRIABLE
    assert combined_exit_code([done, done]) == ExitCode.DONE


def test_a_name_is_also_taken_as_kubectl_prints_it() -> None:
    assert plain_name("rlhfjob.rlhf-operator.dev/sort") == plain_name("sort") == "sort"


def test_what_a_newer_operator_says_is_shown_or_passed_over() -> None:
    assert job(RUNNING | {"weather": {"sunny": True}}).status.gpus == 8
    said = {"phase": "Dreaming", "conditions": [condition("Deep", "Almost", "New")]}
    newer = job(RUNNING | said)
    assert phase_text(newer) == "Dreaming" and newer.exit_code is None
    assert "conditions   Deep  Almost  20m  New" in page(newer)


def test_what_suspending_and_resuming_will_do_is_said() -> None:
    assert "finishes its step, saves, releases 8 GPUs and waits" in suspend_text(job(RUNNING))
    waiting = suspend_text(job({}))
    assert "it has no cluster" in waiting and "`rlhf resume sort -n team`" in waiting
    assert "continues from step 100" in resume_text(job(RUNNING))
    assert "starts from the beginning" in resume_text(job({}))


def test_what_cancelling_takes_and_leaves_is_said() -> None:
    storage = {"storage": {"persistentVolumeClaim": {"claimName": "disk"}}}
    assert cancel_text(job(RUNNING, checkpoint=storage)).splitlines() == [
        "This deletes sort in team (Running, step 120 of 500).",
        "Its cluster sort-1 with 8 GPUs is deleted with it.",
        "Checkpoints stay at pvc://disk/sort; the newest is of step 100.",
        "To pause it instead: rlhf suspend sort -n team",
    ]
    assert cancel_text(job(FAILED)) == "This deletes sort in team (Failed)."
