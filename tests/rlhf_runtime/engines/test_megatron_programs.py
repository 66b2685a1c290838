"""Programs of ranks: complete, without deadlock, and with as few exchanges as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.engines.megatron.stage_programs import Program, StageExchange, make_program
from rlhf_sizing.schedules import (
    Operation,
    OperationOrders,
    forward_only,
    one_forward_one_backward,
    predecessor,
)

from ...depth import examples

Case = tuple[OperationOrders, Sequence[Sequence[int]]]
"""Orders of all ranks, and the ranks of each model's stages."""


def opposite(stages: int, counts: Sequence[int], random: Random) -> Case:
    """Two models in opposite directions, whose operations are in a random order that can run."""
    devices = [list(range(stages)), list(range(stages))[::-1]]
    waiting: list[list[list[Operation]]] = [[] for _ in range(stages)]
    for model, count in enumerate(counts):
        for stage, order in enumerate(one_forward_one_backward(stages, count)):
            own = [operation._replace(pipeline=model) for operation in order]
            waiting[devices[model][stage]].append(own)
    orders: list[list[Operation]] = [[] for _ in range(stages)]
    done = set[Operation | None]([None])
    while any(rest for device in waiting for rest in device):
        device, rest = random.choice(
            [
                (device, rest)
                for device, rests in enumerate(waiting)
                for rest in rests
                if rest and predecessor(rest[0], stages) in done
            ]
        )
        done.add(rest[0])
        orders[device].append(rest.pop(0))
    return orders, devices


@st.composite
def cases(draw: st.DrawFn) -> Case:
    stages, count = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    kind = draw(st.sampled_from(["train", "infer", "opposite"]))
    if kind == "opposite":
        random = draw(st.randoms(use_true_random=False))
        return opposite(stages, (count, draw(st.integers(1, 8))), random)
    make = one_forward_one_backward if kind == "train" else forward_only
    return make(stages, count), [range(stages)]


def make_programs(orders: OperationOrders, devices: Sequence[Sequence[int]]) -> tuple[Program, ...]:
    return tuple(make_program(rank, orders, devices) for rank in range(len(orders)))


@settings(max_examples=examples(150))
@given(cases())
def test_ranks_compute_their_orders_and_exchange_every_result_once(case: Case) -> None:
    orders, devices = case
    sent, received = Counter[tuple[Operation, int, int]](), Counter[tuple[Operation, int, int]]()
    for rank, program in enumerate(make_programs(orders, devices)):
        assert [step for step in program if not isinstance(step, StageExchange)] == list(
            orders[rank]
        )
        for step in program:
            if isinstance(step, StageExchange):
                sent.update((source, rank, peer) for source, peer in step.sends)
                received.update((source, peer, rank) for source, peer in step.receives)
    assert sent == received == Counter(wanted(orders, devices))


def wanted(
    orders: OperationOrders, devices: Sequence[Sequence[int]]
) -> list[tuple[Operation, int, int]]:
    messages = []
    for receiver, order in enumerate(orders):
        for operation in order:
            ranks = devices[operation.pipeline]
            source = predecessor(operation, len(ranks))
            if source is not None and source.stage != operation.stage:
                messages.append((source, ranks[source.stage], receiver))
    return messages


@settings(max_examples=examples(150))
@given(cases(), st.randoms(use_true_random=False))
def test_programs_end_even_if_sends_wait_for_their_receivers(case: Case, random: Random) -> None:
    """An exchange ends when the other ranks have begun all of its messages. Nothing is computed or
    sent before its input has arrived."""
    orders, devices = case
    programs = [list(program) for program in make_programs(orders, devices)]
    available: list[set[Operation]] = [set() for _ in programs]
    begun = set[tuple[int, Operation]]()
    while waiting := [rank for rank, program in enumerate(programs) if program]:
        random.shuffle(waiting)
        count = len(waiting)
        for rank in waiting:
            step = programs[rank][0]
            if isinstance(step, StageExchange):
                assert {source for source, _ in step.sends} <= available[rank]
                messages = (*step.sends, *step.receives)
                begun |= {(rank, source) for source, _ in messages}
                if not all((peer, source) in begun for source, peer in messages):
                    continue
                available[rank] |= {source for source, _ in step.receives}
            else:
                source = predecessor(step, len(devices[step.pipeline]))
                assert source is None or source in available[rank]
                available[rank].add(step)
            programs[rank].pop(0)
            count -= 1
        assert count < len(waiting) or begun_more(programs, begun), "a deadlock"


def begun_more(programs: Sequence[Program], begun: set[tuple[int, Operation]]) -> bool:
    """True if an exchange that waits could end now."""
    return any(
        all((peer, source) in begun for source, peer in (*step.sends, *step.receives))
        for step in (program[0] for program in programs if program)
        if isinstance(step, StageExchange)
    )


@settings(max_examples=examples(150))
@given(cases())
def test_two_ranks_have_their_messages_in_one_order(case: Case) -> None:
    """Process groups match messages of two ranks by their order."""
    sent, received = (
        dict[tuple[int, int], list[Operation]](),
        dict[tuple[int, int], list[Operation]](),
    )
    for rank, program in enumerate(make_programs(*case)):
        for step in program:
            if isinstance(step, StageExchange):
                for source, peer in step.sends:
                    sent.setdefault((rank, peer), []).append(source)
                for source, peer in step.receives:
                    received.setdefault((peer, rank), []).append(source)
    assert sent == received


@settings(max_examples=examples(150))
@given(cases())
def test_gradients_arrive_after_the_forward_pass(case: Case) -> None:
    """The size of a gradient is that of the outputs."""
    for program in make_programs(*case):
        done = set[Operation]()
        for step in program:
            if isinstance(step, Operation):
                done.add(step)
                continue
            for source, _ in step.receives:
                if source.is_backward:
                    assert source._replace(stage=source.stage - 1, is_backward=False) in done


def test_two_stages_send_and_receive_at_once_between_operations() -> None:
    programs = make_programs(one_forward_one_backward(2, 2), [range(2)])
    assert [" ".join(map(written, program)) for program in programs] == [
        "F0 (>F0) F1 (>F1 <B0) B0 (<B1) B1",
        "(<F0) F0 B0 (>B0 <F1) F1 B1 (>B1)",
    ]


def test_one_stage_exchanges_nothing() -> None:
    (program,) = make_programs(one_forward_one_backward(1, 2), [range(1)])
    assert " ".join(map(written, program)) == "F0 B0 F1 B1"


def written(step: Operation | StageExchange) -> str:
    if isinstance(step, Operation):
        return f"{'B' if step.is_backward else 'F'}{step.micro_batch}"
    sends = [f">{written(source)}" for source, _ in step.sends]
    return f"({' '.join(sends + [f'<{written(source)}' for source, _ in step.receives])})"
