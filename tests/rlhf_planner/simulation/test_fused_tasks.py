"""The order of a step whose stages overlap, written out by hand, and what always holds of it."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_planner.simulation.step_tasks import EARLY, LATE, simulate_step, site_of, step_tasks

from ...depth import examples
from ..stage_fusion.fused_jobs import APART, FREED, Unfused, unfused
from .step_bounds import step_lower_bound

READERS = ("reward.score", "reference.log_probs", "critic.values")


@cache
def freed() -> Unfused:
    """The actor generates on devices 0 to 15, and trains on 0 to 7."""
    return unfused(FREED)


def test_late_parts_wait_for_a_call_that_does_not_begin_early() -> None:
    """The actor's own log-probabilities stand between scores and the reference's."""
    job = freed()
    tasks = step_tasks(job.graph, job.fused(16, range(8), *READERS), {})
    assert [task.id for task in tasks] == [
        "actor.reshard",
        "actor.generate",
        "actor.finish",
        "actor.release (early)",
        "actor.release (late)",
        "reward.score (early)",
        "reward.score (late)",
        "actor.log_probs",
        "reference.log_probs (early)",
        "critic.values (early)",
        "reference.log_probs (late)",
        "critic.values (late)",
        "compute",
        "critic.train",
        "actor.train",
    ]
    ranks = {task.id: [each for part in task.ranks for each in part.ranks] for task in tasks}
    assert ranks["actor.release (early)"] == [*range(8, 16)]
    assert ranks["actor.finish"] == ranks["actor.release (late)"] == [*range(8)]
    assert ranks["actor.generate"] == [*range(16)]


def test_engines_in_the_middle_leave_ranks_on_both_sides() -> None:
    job = freed()
    tasks = step_tasks(job.graph, job.fused(16, range(4, 8), "reference.log_probs"), {})
    early = next(task for task in tasks if task.id == "actor.release (early)")
    assert [part.ranks for part in early.ranks] == [range(4), range(8, 16)]


def test_engines_that_all_finish_give_memory_back_together() -> None:
    job = unfused(APART)
    plan = job.fused(16, range(4), "reference.log_probs", "critic.values")
    sites = [task.id for task in step_tasks(job.graph, plan, {})]
    assert sites[1:5] == ["actor.generate", "actor.finish", "actor.release", "reward.score"]


def test_a_step_by_hand() -> None:
    """Responses have ended at 10 s or at 16. The reference's first part is done at 14, on half of
    the critic's devices, so the critic's begins then; the others begin at 16."""
    job = freed()
    seconds = {
        "actor.generate": 10.0,
        "actor.finish": 6.0,
        "actor.release": 1.0,
        "actor.log_probs": 2.0,
        "reference.log_probs": 4.0,
        "critic.values": 3.0,
        "compute": 1.0,
        "critic.train": 5.0,
        "actor.train": 5.0,
    }
    late = {"reference.log_probs": 1.0, "critic.values": 2.0}
    simulation = simulate_step(job.graph, job.fused(16, range(8), *READERS), seconds, late)
    spans = {
        span.task: (span.begin_seconds, span.end_seconds)
        for span in simulation.spans
        if span.iteration == 0
    }
    assert spans == {
        "actor.reshard": (0, 0),
        "actor.generate": (0, 10),
        "actor.finish": (10, 16),
        "actor.release (early)": (10, 11),
        "actor.release (late)": (16, 17),
        "reward.score (early)": (10, 10),
        "reward.score (late)": (16, 16),
        "actor.log_probs": (17, 19),
        "reference.log_probs (early)": (11, 14),
        "critic.values (early)": (14, 15),
        "reference.log_probs (late)": (16, 17),
        "critic.values (late)": (17, 19),
        "compute": (19, 20),
        "critic.train": (20, 25),
        "actor.train": (20, 25),
    }
    assert simulation.step_seconds == 25


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.floats(0, 10), min_size=12, max_size=12),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.sets(st.sampled_from(READERS), min_size=1),
)
def test_rows_are_there_before_they_are_read(
    times: list[float], shares: list[float], fused: set[str]
) -> None:
    """And all work is done: each rank's, and no chain of calls is cut short."""
    job = freed()
    plan = job.fused(16, range(8), *(call for call in READERS if call in fused))
    calls = [call.call for call in plan.calls if call.mesh is not None]
    seconds = dict(zip(calls, times, strict=False))
    late = {
        call: seconds[call] * share
        for call, share in zip(READERS, shares, strict=True)
        if call in seconds
    }
    tasks = step_tasks(job.graph, plan, seconds, late)
    simulation = simulate_step(job.graph, plan, seconds, late)
    sums: dict[str, float] = {}
    for task in tasks:
        sums[site_of(task.id)] = sums.get(site_of(task.id), 0.0) + task.seconds
    released = sums.pop("actor.release")
    assert released == pytest.approx(2 * seconds["actor.release"])
    assert all(sums[call] == pytest.approx(each) for call, each in seconds.items() if call in sums)
    for begins, ends in zip(simulation.begins, simulation.ends, strict=True):
        begin = dict(zip([task.id for task in tasks], begins, strict=False))
        end = dict(zip([task.id for task in tasks], ends, strict=False))
        assert all(begin[call + EARLY] >= end["actor.generate"] for call in fused)
        assert all(begin[call + LATE] >= end["actor.finish"] for call in fused)
        assert all(begin[call] >= end["actor.finish"] for call in READERS if call not in fused)
        assert begin["compute"] >= max(end.get(call + LATE, 0.0) for call in READERS)
        assert begin["actor.log_probs"] >= end["actor.finish"]
    assert simulation.step_seconds >= step_lower_bound(tasks) * (1 - 1e-9)
    assert all(use.busy_seconds <= simulation.step_seconds + 1e-9 for use in simulation.uses)
