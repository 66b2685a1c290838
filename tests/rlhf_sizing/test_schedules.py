"""Orders of passes, against their formulas and a naive simulation."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_sizing.schedules import (
    Operation,
    OperationOrders,
    alternate_passes,
    end_times,
    forward_only,
    one_forward_one_backward,
    predecessor,
)

from ..depth import examples

sizes = st.integers(1, 8), st.integers(1, 12)


@settings(max_examples=examples(60))
@given(*sizes)
def test_stages_run_both_passes_of_each_micro_batch_once(stages: int, micro_batches: int) -> None:
    orders = one_forward_one_backward(stages, micro_batches)
    both = {(number, back) for number in range(micro_batches) for back in (False, True)}
    for stage, order in enumerate(orders):
        assert {(op.micro_batch, op.is_backward) for op in order} == both
        assert len(order) == len(both)
        assert {(op.pipeline, op.stage) for op in order} == {(0, stage)}


@settings(max_examples=examples(60))
@given(*sizes, st.integers(1, 5), st.integers(1, 9))
def test_like_stages_take_the_seconds_of_the_formula(
    stages: int, micro_batches: int, forward: int, backward: int
) -> None:
    """(m + p - 1) (f + b); without backward passes (m + p - 1) f."""
    rounds = micro_batches + stages - 1
    trained = one_forward_one_backward(stages, micro_batches)
    ends = end_times(trained, lambda op: backward if op.is_backward else forward, [stages])
    assert max(ends.values()) == rounds * (forward + backward)
    ends = end_times(forward_only(stages, micro_batches), lambda op: forward, [stages])
    assert max(ends.values()) == rounds * forward


@settings(max_examples=examples(60))
@given(*sizes)
def test_a_stage_keeps_as_many_micro_batches_as_stages_follow(
    stages: int, micro_batches: int
) -> None:
    for stage, order in enumerate(one_forward_one_backward(stages, micro_batches)):
        kept = most_kept = 0
        for operation in order:
            kept += -1 if operation.is_backward else 1
            most_kept = max(most_kept, kept)
        assert most_kept == min(micro_batches, stages - stage)


@settings(max_examples=examples(60))
@given(*sizes, st.randoms(use_true_random=False))
def test_operations_start_when_their_device_and_their_input_are_ready(
    stages: int, micro_batches: int, random: Random
) -> None:
    orders = one_forward_one_backward(stages, micro_batches)
    seconds = {op: random.randint(1, 9) for order in orders for op in order}
    ends = end_times(orders, seconds.__getitem__, [stages])
    assert ends == raised_until_they_fit(orders, seconds, stages)


def raised_until_they_fit(
    orders: OperationOrders, seconds: dict[Operation, int], stages: int
) -> dict[Operation, float]:
    ends = {operation: float(length) for operation, length in seconds.items()}
    for _ in ends:
        for order in orders:
            for place, operation in enumerate(order):
                before = [order[place - 1]] if place else []
                source = predecessor(operation, stages)
                before += [] if source is None else [source]
                start = max((ends[earlier] for earlier in before), default=0.0)
                ends[operation] = start + seconds[operation]
    return ends


def test_a_stage_that_warms_up_more_than_an_earlier_one_waits_for_ever() -> None:
    orders = [alternate_passes(0, 3, 0), alternate_passes(1, 3, 1)]
    with pytest.raises(ValueError, match="deadlock"):
        end_times(orders, lambda op: 1.0, [2])
