"""Simulated steps against ranks with queues of their own, and what was worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_planner.simulation.event_graph import Cause, PoolRanks, Task
from rlhf_planner.simulation.simulate import Simulation, Span, Wait, simulate

from ...depth import examples
from .naive_simulation import NaiveRun
from .random_tasks import NUM_RANKS, passes_ahead, steps
from .step_bounds import step_seconds


def ranks(first: int, end: int) -> tuple[PoolRanks, ...]:
    return (PoolRanks("a", range(first, end)),)


def ppo(
    actor: tuple[PoolRanks, ...],
    critic: tuple[PoolRanks, ...],
    reference: tuple[PoolRanks, ...],
    reward: tuple[PoolRanks, ...],
) -> list[Task]:
    """PPO with a call each for what takes time: 4 + 2 + 3 + 1 + 5 + 6 = 21 s in a row."""
    prepared = ("reference.log_probs", "critic.values", "reward.scores")
    return [
        Task("actor.generate", 4, actor, after_previous=("actor.train",)),
        Task("reference.log_probs", 2, reference, ("actor.generate",)),
        Task("critic.values", 3, critic, ("actor.generate",), ("critic.train",)),
        Task("reward.scores", 1, reward, ("actor.generate",)),
        Task("critic.train", 5, critic, prepared),
        Task("actor.train", 6, actor, prepared),
    ]


def begins(simulation: Simulation, iteration: int) -> dict[str, float]:
    return {s.task: s.begin_seconds for s in simulation.spans if s.iteration == iteration}


@settings(max_examples=examples(120))
@given(steps(most_seconds=4), st.integers(1, 3), passes_ahead)
def test_tasks_run_when_ranks_with_queues_run_them(
    tasks: list[Task], iterations: int, ahead: int
) -> None:
    naive = NaiveRun(tasks, iterations, ahead)
    seconds = {task.id: task.seconds for task in tasks}
    assert simulate(tasks, iterations, ahead).spans == tuple(
        Span(task.id, number, begin, begin + seconds[task.id])
        for number in range(iterations)
        for task in tasks
        for begin in [naive.begins[number, task.id]]
    )


def exact_step(tasks: Sequence[Task], ahead: int) -> Fraction | None:
    """Seconds of a step once the same goes on for ever: as many passes as a pass may wait for begin
    and end as they did some iterations before, only later. None: not within 40 iterations."""
    simulation = simulate(tasks, 40, ahead)
    rows = [(*b, *e) for b, e in zip(simulation.begins, simulation.ends, strict=True)]
    memory = ahead + 1
    now = [row for window in rows[-memory:] for row in window]
    for back in range(1, 20):
        then = [row for window in rows[-memory - back : -back] for row in window]
        shifts = {one - other for one, other in zip(now, then, strict=True)}
        if len(shifts) == 1:
            return Fraction(int(shifts.pop()), back)
    return None


@settings(max_examples=examples(80))
@given(steps(), passes_ahead)
def test_a_step_takes_as_long_as_when_the_same_goes_on_for_ever(
    tasks: list[Task], ahead: int
) -> None:
    exact = exact_step(tasks, ahead)
    if exact is not None:
        assert Fraction(step_seconds(tasks, ahead)).limit_denominator(100) == exact


@settings(max_examples=examples(50))
@given(steps(), passes_ahead)
def test_ends_stay_near_to_multiples_of_a_step(tasks: list[Task], ahead: int) -> None:
    """Within twice the seconds of all tasks, for ever: a cycle is behind by one round at most, and
    a path through many iterations is cycles and a rest in which no task comes twice."""
    simulation = simulate(tasks, 30, ahead)
    most = 2 * sum(task.seconds for task in tasks)
    for number, ends in enumerate(simulation.ends):
        off = ends[-1] - simulation.ends[0][-1] - number * simulation.step_seconds
        assert abs(off) <= most + 1e-9


@settings(max_examples=examples(50))
@given(steps(), passes_ahead, st.data())
def test_nothing_ends_earlier_where_a_task_takes_longer(
    tasks: list[Task], ahead: int, data: st.DataObject
) -> None:
    """With a fixed order on every rank there are no scheduling anomalies."""
    longer = [replace(t, seconds=t.seconds + data.draw(st.integers(0, 3))) for t in tasks]
    before, after = simulate(tasks, 3, ahead), simulate(longer, 3, ahead)
    for one, other in zip(before.spans, after.spans, strict=True):
        assert one.begin_seconds <= other.begin_seconds
        assert one.end_seconds <= other.end_seconds
    assert before.step_seconds <= after.step_seconds


@settings(max_examples=examples(50))
@given(steps(), passes_ahead)
def test_a_pass_more_ahead_is_never_slower(tasks: list[Task], ahead: int) -> None:
    less, more = simulate(tasks, 4, ahead), simulate(tasks, 4, ahead + 1)
    assert all(m <= n for m, n in zip(sum(more.ends, ()), sum(less.ends, ()), strict=True))
    assert more.step_seconds <= less.step_seconds


@settings(max_examples=examples(50))
@given(steps(), passes_ahead, st.permutations(range(NUM_RANKS)))
def test_how_ranks_are_numbered_changes_nothing(
    tasks: list[Task], ahead: int, numbers: Sequence[int]
) -> None:
    renumbered = [
        replace(
            task,
            ranks=tuple(
                PoolRanks(pool, range(numbers[rank], numbers[rank] + 1))
                for pool, part in task.ranks
                for rank in part
            ),
        )
        for task in tasks
    ]
    one, other = simulate(tasks, 3, ahead), simulate(renumbered, 3, ahead)
    assert one.spans == other.spans
    assert one.critical_cycle == other.critical_cycle
    assert one.idle_share == pytest.approx(other.idle_share)


@settings(max_examples=examples(50))
@given(steps(), passes_ahead)
def test_only_the_critical_path_makes_steps_as_long_as_they_are(
    tasks: list[Task], ahead: int
) -> None:
    simulation = simulate(tasks, 2, ahead)
    critical = {each.task for each in simulation.critical_path}
    for index, task in enumerate(tasks):
        if task.id in critical:
            longer = [*tasks[:index], replace(task, seconds=task.seconds + 1), *tasks[index + 1 :]]
            least = simulation.step_seconds + 1 / simulation.critical_cycle.iterations
            assert step_seconds(longer, ahead) >= least - 1e-9
        else:
            gone = [*tasks[:index], replace(task, seconds=0), *tasks[index + 1 :]]
            assert step_seconds(gone, ahead) == simulation.step_seconds


@settings(max_examples=examples(50))
@given(steps(), passes_ahead)
def test_every_task_starts_when_what_it_waits_for_ends(tasks: list[Task], ahead: int) -> None:
    simulation = simulate(tasks, 4, ahead)
    ends = {(s.task, s.iteration): s.end_seconds for s in simulation.spans}
    over = {number: row[-1] for number, row in enumerate(simulation.ends)}
    for iteration in range(4):
        started = begins(simulation, iteration)
        waits = {wait.task: wait for wait in simulation.waits(iteration)}
        for name, begin in started.items():
            wait = waits.get(name)
            if wait is None:
                assert begin == 0
            elif wait.waits_for is None:
                assert begin == over[wait.of_iteration]
            else:
                assert begin == ends[wait.waits_for, wait.of_iteration]


def test_colocated_ranks_do_one_call_after_the_other() -> None:
    everywhere = ranks(0, 8)
    simulation = simulate(ppo(everywhere, everywhere, everywhere, everywhere))
    assert simulation.step_seconds == 21
    assert simulation.makespan_seconds == 4 * 21
    assert [use.idle_share for use in simulation.uses] == [0.0]
    assert [each.task for each in simulation.critical_path] == [
        each.id for each in simulation.graph.tasks
    ]


def test_calls_on_other_ranks_overlap() -> None:
    """{actor, reference} beside {critic, reward}. 0-4 generate; 4-6 log_probs, 4-7 values and 7-8
    scores; 8-13 critic's and 8-14 actor's training. The next begins at 14."""
    simulation = simulate(ppo(ranks(0, 4), ranks(4, 8), ranks(0, 4), ranks(4, 8)))
    assert begins(simulation, 0) == {
        "actor.generate": 0,
        "reference.log_probs": 4,
        "critic.values": 4,
        "reward.scores": 7,
        "critic.train": 8,
        "actor.train": 8,
    }
    assert simulation.step_seconds == 14
    assert [use.idle_share for use in simulation.uses] == pytest.approx([2 / 14, 5 / 14])
    assert simulation.idle_share == pytest.approx(3.5 / 14)
    assert [(each.task, each.cause) for each in simulation.critical_path] == [
        ("actor.generate", Cause.INPUT),
        ("critic.values", Cause.INPUT),
        ("reward.scores", Cause.RANKS),
        ("actor.train", Cause.INPUT),
    ]


def test_the_critics_training_overlaps_with_the_next_generation() -> None:
    """Each role on ranks of its own, and 20 s for the critic's training: 4 + 3 + 6 = 13 s of the
    actor's chain, but 3 + 20 = 23 s of the critic's ranks. Generation of the second step begins at
    13, its values when the critic has been trained, at 7 + 20 = 27."""
    apart = ppo(ranks(0, 2), ranks(2, 4), ranks(4, 6), ranks(6, 8))
    tasks = [replace(task, seconds=20) if task.id == "critic.train" else task for task in apart]
    simulation = simulate(tasks)
    assert begins(simulation, 1) == {
        "actor.generate": 13,
        "reference.log_probs": 17,
        "critic.values": 27,
        "reward.scores": 17,
        "critic.train": 30,
        "actor.train": 30,
    }
    assert simulation.step_seconds == 23
    assert [each.task for each in simulation.critical_path] == ["critic.values", "critic.train"]
    assert [use.busy_seconds for use in simulation.uses] == [10, 23, 2, 1]
    wait = next(each for each in simulation.waits(1) if each.task == "actor.train")
    assert wait == Wait("actor.train", 1, "critic.values", 1, Cause.INPUT)


def test_a_driver_that_waits_for_each_step_lets_nothing_overlap_with_the_next() -> None:
    """The same: 4 + 3 + 20 = 27 s."""
    apart = ppo(ranks(0, 2), ranks(2, 4), ranks(4, 6), ranks(6, 8))
    tasks = [replace(task, seconds=20) if task.id == "critic.train" else task for task in apart]
    simulation = simulate(tasks, passes_ahead=0)
    assert simulation.step_seconds == 27
    assert simulation.makespan_seconds == 4 * 27
    assert [(each.task, each.cause) for each in simulation.critical_path] == [
        ("actor.generate", Cause.DRIVER),
        ("critic.values", Cause.INPUT),
        ("critic.train", Cause.INPUT),
    ]


def test_what_runs_beside_the_ranks_overlaps_with_itself_in_the_passes_under_way() -> None:
    """10 s in two passes at a time: ends in pairs, 5 s for each step on average."""
    simulation = simulate([Task("reward.score", 10)])
    assert [ends[-1] for ends in simulation.ends] == [10, 10, 20, 20]
    assert simulation.step_seconds == 5


def test_a_resource_of_a_name_takes_one_task_at_a_time() -> None:
    simulation = simulate([Task("reward.score", 10, resource="host")])
    assert [ends[-1] for ends in simulation.ends] == [10, 20, 30, 40]
    assert simulation.step_seconds == 10


def test_a_call_that_waits_keeps_its_ranks_from_calls_sent_later() -> None:
    """z could run at once, but stands behind y in its rank's queue, which waits for x."""
    tasks = [
        Task("x", 5, ranks(0, 1)),
        Task("y", 1, ranks(1, 2), after=("x",)),
        Task("z", 2, ranks(1, 2)),
    ]
    assert begins(simulate(tasks), 0) == {"x": 0, "y": 5, "z": 6}


def test_no_number_of_iterations_shows_the_step_that_goes_on_for_ever() -> None:
    """x takes longer than y, by a tenth of a second, but z is so late after y that passes end with
    it until the five hundredth."""
    tasks = [
        Task("x", 100.1, ranks(0, 1)),
        Task("y", 100.0, ranks(1, 2)),
        Task("z", 50.0, (), after=("y",)),
    ]
    simulation = simulate(tasks, 4)
    late = simulation.ends[3][-1] - simulation.ends[2][-1]
    assert late == pytest.approx(100.0)
    assert simulation.step_seconds == pytest.approx(100.1)


def test_it_is_the_same_every_time_and_for_any_number_of_ranks() -> None:
    generator = random.Random(3)
    tasks = []
    for number in range(20):
        first = generator.randrange(0, 1024, 32)
        part = ranks(first, generator.randrange(first + 32, 1056, 32))
        before = generator.sample([task.id for task in tasks], min(2, number))
        tasks.append(Task(f"t{number}", generator.random(), part, tuple(before)))
    simulation = simulate(tasks)
    assert simulation == simulate(tasks)
    assert simulation.step_seconds == step_seconds(tasks)
    assert len(simulation.graph.groups) <= 40
    assert sum(use.group.num_ranks for use in simulation.uses) <= 1024
