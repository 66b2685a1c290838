"""How many events about a job are recorded."""

from __future__ import annotations

from datetime import timedelta

from rlhf_operator.apply import event_limit
from rlhf_operator.apply.event_limit import BURST, REFILL_SECONDS, EventLimit

from .world import START, World, manifest

JOB = "uid-of-sort"


def num_allowed(limit: EventLimit, number: int, seconds: float, reason: str = "Running") -> int:
    """Return how many of so many events at this time are allowed."""
    now = START + timedelta(seconds=seconds)
    return sum(limit.allows(JOB, reason, now) for _ in range(number))


def test_a_burst_is_recorded_and_then_one_event_at_an_interval() -> None:
    limit = EventLimit()
    assert num_allowed(limit, BURST + 5, 0) == BURST
    assert num_allowed(limit, 5, REFILL_SECONDS - 1) == 0
    assert num_allowed(limit, 5, REFILL_SECONDS) == 1
    assert num_allowed(limit, 2 * BURST, 100 * REFILL_SECONDS) == BURST
    assert num_allowed(limit, 1, 0) == 0, "a clock that was set back gives none"


def test_other_reasons_and_jobs_are_recorded() -> None:
    limit = EventLimit()
    num_allowed(limit, BURST, 0)
    assert num_allowed(limit, 1, 0, "Failed") == 1
    assert limit.allows("uid-of-other", "Running", START)


def test_only_the_last_jobs_are_remembered() -> None:
    limit = EventLimit()
    for number in range(event_limit.MAX_BUCKETS + 1):
        limit.allows(str(number), "Running", START)
    assert len(limit._buckets) == event_limit.MAX_BUCKETS


def test_a_job_of_the_same_name_has_its_own_limit(world: World) -> None:
    for _ in range(BURST + 1):
        world.submit(manifest(suspend=True))
        world.settle()
        world.delete_job()
        world.settle()
    assert len(world.told("Requested")) == BURST + 1


def test_a_field_that_flips_for_ever_does_not_flood_the_events(world: World) -> None:
    """Two tools that apply different manifests to one job that has ended."""
    world.run_to_training()
    world.head().finish()
    world.wait(10)
    for number in range(200):
        world.edit_job(ttlSecondsAfterFinished=number % 2)
        world.wait(3)
    assert len(world.told("JobHasEnded")) == BURST + 600 // REFILL_SECONDS - 1
