"""List schedules: what goes first, who waits, and both senses of time."""

from __future__ import annotations

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_planner.pipelines.list_schedule import ForwardLimits, list_orders
from rlhf_planner.pipelines.pipeline import (
    Orders,
    Pipeline,
    Workload,
    uniform_pipeline,
)
from rlhf_planner.pipelines.priorities import (
    critical_path_first,
    first_model_first,
    list_schedules,
    mirror_orders,
    mirror_workload,
)
from rlhf_planner.pipelines.schedule import Schedule, build_schedule

from ...depth import examples
from .checker import done_in, problems
from .random_pipelines import limits, some_pipelines


def scheduled(workload: Workload, orders: Orders) -> Schedule:
    schedule = build_schedule(workload, orders)
    assert schedule is not None
    return schedule


def test_a_patient_device_waits_for_what_matters_more() -> None:
    """Device 1 has the first model's only micro-batch from 1 s on. The second model's takes it from
    0 to 10 otherwise, and the first one ends at 10 + 1 + 2 + 2 instead of 1 + 1 + 2 + 2."""
    first = uniform_pipeline("first", [0, 1], 1, 2, 1)
    second = uniform_pipeline("second", [1], 10, 10, 1)
    workload = Workload((first, second))
    rule = first_model_first(workload)
    hasty = scheduled(workload, list_orders(workload, rule, ForwardLimits()))
    patient = scheduled(workload, list_orders(workload, rule, ForwardLimits(), is_patient=True))
    assert (hasty.ends[3], hasty.makespan_seconds) == (15, 23)
    assert (patient.ends[3], patient.makespan_seconds) == (6, 24)


def test_a_pipeline_is_no_further_ahead_than_it_may_be() -> None:
    """Two micro-batches more than under 1F1B, or as many as there are."""
    workload = Workload((uniform_pipeline("x", range(3), 1, 2, 9),))
    rule = critical_path_first(workload)
    for ahead, peak in ((0, (3, 2, 1)), (2, (5, 4, 3)), (-1, (2, 1, 1))):
        schedule = scheduled(
            workload, list_orders(workload, rule, ForwardLimits(extra_in_flight=(ahead,)))
        )
        assert all(held <= most for held, most in zip(schedule.peak_bytes, peak, strict=True))


@settings(max_examples=examples(40))
@given(some_pipelines(), limits, st.integers(0, 60))
def test_all_of_them_are_valid_within_the_limit(
    pipelines: list[Pipeline], limit: int | None, skipped: int
) -> None:
    workload = Workload(tuple(pipelines))
    for orders in islice(list_schedules(workload, limit), skipped, skipped + 3):
        schedule = scheduled(workload, orders)
        assert not list(problems(pipelines, done_in(schedule), limit))


@settings(max_examples=examples(60))
@given(some_pipelines())
def test_time_running_back_takes_as_long_and_holds_as_much(pipelines: list[Pipeline]) -> None:
    workload = Workload(tuple(pipelines))
    backwards = mirror_workload(workload)
    assert mirror_workload(backwards) == workload
    orders = list_orders(workload, critical_path_first(workload), ForwardLimits())
    turned = mirror_orders(workload, orders)
    assert mirror_orders(backwards, turned) == orders
    one, other = scheduled(workload, orders), scheduled(backwards, turned)
    assert one.makespan_seconds == other.makespan_seconds
    assert one.peak_bytes == other.peak_bytes
