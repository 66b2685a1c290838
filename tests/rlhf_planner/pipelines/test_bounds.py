"""No schedule is shorter than the bound."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_planner.pipelines.pipeline import Pipeline, Workload, uniform_pipeline
from rlhf_planner.pipelines.schedule import lower_bound, one_device_bound, schedule_alone

from ...depth import examples
from .all_orders import shortest
from .random_pipelines import random_pipelines, some_pipelines

jobs = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=6
)


@given(jobs)
def test_one_device_works_second_by_second_on_what_has_the_longest_tail(
    given_jobs: list[tuple[int, int, int]],
) -> None:
    left = {index: job[1] for index, job in enumerate(given_jobs)}
    now = latest = 0
    while left:
        there = [index for index in left if given_jobs[index][0] <= now]
        now += 1
        if there:
            chosen = max(there, key=lambda index: given_jobs[index][2])
            left[chosen] -= 1
            if not left[chosen]:
                del left[chosen]
                latest = max(latest, now + given_jobs[chosen][2])
    assert one_device_bound(given_jobs) == latest


@settings(max_examples=examples(60))
@given(some_pipelines())
def test_it_counts_work_and_ramps(pipelines: list[Pipeline]) -> None:
    """Whatever a device does lies between the shortest way to it and the shortest way from it."""
    bound = lower_bound(Workload(tuple(pipelines)))
    for device in range(4):
        there = [
            (pipeline, pipeline.devices.index(device))
            for pipeline in pipelines
            if device in pipeline.devices
        ]
        if there:
            work = sum(
                pipeline.micro_batches
                * (pipeline.forward_seconds[stage] + pipeline.backward_seconds[stage])
                for pipeline, stage in there
            )
            ramp = min(sum(pipeline.forward_seconds[:stage]) for pipeline, stage in there)
            drain = min(sum(pipeline.backward_seconds[:stage]) for pipeline, stage in there)
            assert bound >= ramp + work + drain


@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 5), st.integers(1, 9))
def test_it_proves_one_forward_one_backward_optimal_for_like_stages(
    stages: int, micro_batches: int, forward: int, backward: int
) -> None:
    pipeline = uniform_pipeline("x", range(stages), forward, backward, micro_batches)
    assert lower_bound(Workload((pipeline,))) == schedule_alone(pipeline).makespan_seconds


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("stages", "counts"), [(2, (1, 1)), (2, (2,)), (3, (1,))])
def test_no_order_at_all_is_shorter_and_that_of_micro_batches_costs_nothing(
    seed: int, stages: int, counts: tuple[int, ...]
) -> None:
    """Every order of every device, also such in which micro-batches overtake each other."""
    pipelines = random_pipelines(Random(seed), stages, counts)
    best = shortest(pipelines, None, keeps_order=False)
    assert lower_bound(Workload(tuple(pipelines))) <= best
    assert shortest(pipelines, None, keeps_order=True) == best


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_more_micro_batches_is_shorter(seed: int) -> None:
    pipelines = random_pipelines(Random(seed), 2, (2, 1))
    bound = lower_bound(Workload(tuple(pipelines)))
    assert bound <= shortest(pipelines, None, keeps_order=True)
