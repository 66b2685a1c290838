"""The status counts seconds in phases, idle GPU seconds and restarts by reason."""

from __future__ import annotations

from rlhf_api.status import JobPhase
from rlhf_kube.kinds import Kind
from rlhf_operator.decide.reports import MAX_REASONS, OTHER, add_reason

from .world import NAMESPACE, World, manifest


def test_seconds_are_counted_for_phases_that_were_left(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.wait(100)
    world.run_kuberay()
    world.settle()
    status = world.status()
    assert status.phase is not JobPhase.PROVISIONING
    assert 100 <= status.phase_seconds["Provisioning"] <= 110
    world.head().advance(3)
    world.wait(50)
    world.head().finish()
    world.wait(10)
    status = world.status()
    assert 50 <= status.phase_seconds["Running"] <= 70
    assert "Succeeded" not in status.phase_seconds, "an end lasts for ever"
    before = status.phase_time
    world.wait(600)
    assert world.status().phase_time == before


def test_gpus_are_busy_while_the_workers_train_and_idle_before(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.run_kuberay()
    world.settle()
    world.wait(100)
    assert (world.status().gpus, world.status().busy_gpus) == (8, 0), "the driver starts"
    world.head().advance(3)
    world.wait(15)
    idle = world.status().idle_gpu_seconds
    assert (world.status().gpus, world.status().busy_gpus) == (8, 8)
    assert 8 * 100 <= idle <= 8 * 125
    world.wait(100)
    world.head().advance(4)
    world.wait(15)
    status = world.status()
    assert status.idle_gpu_seconds == idle
    assert status.gpu_seconds >= idle + 8 * 80


def test_a_driver_that_starts_again_is_idle_until_it_reports(world: World) -> None:
    world.run_to_training()
    world.head().end(4)
    world.wait(30)
    status = world.status()
    assert status.restarts.by_reason == {"DriverFailed": 1}
    assert status.gpus == 8 and status.busy_gpus == 0


def test_further_reasons_of_restarts_share_one() -> None:
    counts: dict[str, int] = {}
    for number in range(3 * MAX_REASONS):
        counts = dict(add_reason(counts, f"Reason{number}", 1))
    counts = dict(add_reason(counts, "Reason0", 2))
    assert len(counts) == MAX_REASONS
    assert counts["Reason0"] == 3 and sum(counts.values()) == 3 * MAX_REASONS + 2
    assert counts[OTHER] == 2 * MAX_REASONS + 1
    assert add_reason(counts, "New", 0) == counts


def test_a_job_of_an_earlier_release_runs_on_and_is_counted_from_now_on(world: World) -> None:
    world.run_to_training()
    earlier = world.kube.objects[Kind.JOB, NAMESPACE, "sort"]
    for name in ("phaseTime", "phaseSeconds", "busyGpus", "idleGpuSeconds"):
        earlier["status"].pop(name, None)
    earlier["status"]["restarts"].pop("byReason", None)
    world.start_operator()
    world.head().advance(5)
    world.wait(20)
    status = world.status()
    assert world.head().submitted == ["sort-1-0"] and status.restarts.total == 0
    assert status.phase_time is not None and "Running" not in status.phase_seconds
    assert status.busy_gpus == 8 and status.gpu_seconds > status.idle_gpu_seconds
    world.head().finish()
    world.wait(10)
    assert world.phase()[0] is JobPhase.SUCCEEDED
    assert world.status().phase_seconds["Running"] <= 60
