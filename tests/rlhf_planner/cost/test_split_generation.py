"""Generation whose last responses are finished apart: by hand, against one call, and row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.mesh import Mesh
from rlhf_api.plan_fusion import CHECK_STEPS
from rlhf_api.spec.models import Precision
from rlhf_planner.cost.analytic_layers import analytic_layers
from rlhf_planner.cost.generation import (
    Engine,
    SplitGeneration,
    engine_of,
    generate_seconds,
    prefill_seconds,
)
from rlhf_planner.cost.hardware import HARDWARE, Hardware
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.memory.generation import GenerationCall, kv_token_bytes
from rlhf_sizing.shape import DecoderShape

from ...depth import examples
from .engine_run import Row, run_engine, spread_lengths
from .simple import LLAMA_2_7B, SMALL, equal, links_of
from .test_generation import COUNTING, ROOMY, a_load

H100 = HARDWARE["H100"]


def engines(number: int, first: int = 0) -> Mesh:
    return Mesh(pool="a", first_rank=first, data=number)


def split(
    hardware: Hardware = COUNTING,
    shape: DecoderShape = SMALL,
    *,
    prompts: int = 200,
    number: int = 2,
    finishing: int = 1,
    threshold: int = 20,
    prompt: Lengths = equal(100),  # noqa: B008
    response: Lengths = Lengths(500, 1000),  # noqa: B008
    cache: int = ROOMY,
    at_once: int = 1024,
) -> SplitGeneration:
    return SplitGeneration(
        load=a_load(shape, at_once=at_once),
        call=GenerationCall(prompts, 1),
        engines=engines(number),
        finish=engines(finishing),
        threshold_rows=threshold,
        kv_cache_bytes=cache,
        prompt=prompt,
        response=response,
        layers=analytic_layers(hardware, shape, Precision.BFLOAT16),
        links=links_of(hardware),
    )


def split_at(
    share: float, prompts: int, number: int, finishing: int, mean: float, at_once: int
) -> SplitGeneration:
    """Where such a share of what is under way is left."""
    rows = min(prompts, number * at_once)
    return split(
        H100,
        LLAMA_2_7B,
        prompts=prompts,
        number=number,
        finishing=finishing,
        threshold=max(1, round(share * rows)),
        response=Lengths(mean, 2048),
        at_once=at_once,
    )


def in_one(given: SplitGeneration) -> float:
    return generate_seconds(
        given.load,
        given.call,
        given.engines,
        given.kv_cache_bytes,
        given.prompt,
        given.response,
        given.layers,
        given.links,
    ).total


def test_equally_likely_lengths_by_hand() -> None:
    """A second a step. A tenth of 200 rows is left at 900 tokens, which is noticed four later: 96
    of 1,000 are left of the longest, hence 19.2 rows. The longest of them takes 96 x 19.2 / 20.2.
    Two passes over 10,000 prompt tokens come before, and one over the 9.6 rows of 1,004 that move,
    two as these are more than 8,192."""
    found = split()
    assert found.tokens == pytest.approx(904)
    assert found.rows_left == pytest.approx(19.2)
    assert found.generate_seconds.total == pytest.approx(2 + 904)
    assert found.finish_seconds.total == pytest.approx(2 + 96 * 19.2 / 20.2, rel=1e-5)
    assert found.left == Lengths(48, 96)


def test_all_engines_may_finish_what_they_have() -> None:
    """Nothing moves; the longest of all is expected to be as long as it is without a threshold."""
    found = split(finishing=2)
    assert found.finish_seconds.total == pytest.approx(96 * 19.2 / 20.2)
    total = found.generate_seconds.total + found.finish_seconds.total
    assert total == pytest.approx(in_one(found), rel=1e-3)


def test_looks_take_an_all_reduce_for_every_eight_tokens() -> None:
    hardware = replace(COUNTING, collective_seconds=0.5, link_latency_seconds=0.0)
    found, links = split(hardware), links_of(hardware)
    look = links.all_reduce_seconds(8.0, links.group(0, 2, 1))
    assert look > 0
    assert found.generate_seconds.data_communication == pytest.approx(904 / CHECK_STEPS * look)


def test_rows_that_have_no_room_wait_in_time_and_not_in_memory() -> None:
    """The limit of sequences, or the cache, of the engine that finishes."""
    roomy = split(threshold=60).finish_seconds.total
    limited = split(threshold=60, at_once=100)
    assert limited.finish_seconds.total == pytest.approx(roomy)
    few = replace(limited, load=replace(limited.load, max_concurrent_sequences=10))
    assert few.finish_seconds.total > 2 * roomy
    token = kv_token_bytes(limited.load, 1)
    small = replace(limited, kv_cache_bytes=8000 * token)
    assert small.finish_seconds.total > 2 * roomy


def test_equal_responses_leave_nothing_to_finish() -> None:
    found = split(response=equal(1000))
    assert found.rows_left == 0 and found.finish_seconds.total == 0
    assert found.generate_seconds.total == pytest.approx(in_one(found))


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(64, 2000),
    st.integers(1, 8),
    st.floats(0.03, 0.9),
    st.floats(200, 1500),
    st.sampled_from([64, 1024]),
)
def test_where_nothing_moves_both_parts_are_the_call(
    prompts: int, number: int, share: float, mean: float, at_once: int
) -> None:
    """One model for both: they differ by the looks, and by when the longest of all is expected."""
    found = split_at(share, prompts, number, number, mean, at_once)
    total = found.generate_seconds.total + found.finish_seconds.total
    assert total == pytest.approx(in_one(found), rel=0.05)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(16, 2000), st.integers(2, 8), st.floats(0.03, 0.4), st.floats(200, 1500))
def test_fewer_engines_never_finish_sooner(
    prompts: int, number: int, share: float, mean: float
) -> None:
    """And a later threshold never means less generation before it."""
    response = Lengths(mean, 2048)
    threshold = max(2, round(share * prompts))
    found = [
        split(
            H100,
            LLAMA_2_7B,
            prompts=prompts,
            number=number,
            finishing=finishing,
            threshold=threshold,
            response=response,
        )
        for finishing in range(1, number + 1)
    ]
    times = [each.finish_seconds.total for each in found]
    assert all(few >= many * 0.99 for few, many in zip(times, times[1:], strict=False))
    assert len({each.generate_seconds.total for each in found}) == 1
    later = replace(found[0], threshold_rows=threshold // 2)
    assert later.generate_seconds.total >= found[0].generate_seconds.total
    assert later.rows_left <= found[0].rows_left


def engine_in(given: SplitGeneration) -> Engine:
    group = given.links.tensor_group(given.engines)
    shape, number_bytes = given.load.shape, given.load.number_bytes
    return engine_of(shape, number_bytes, given.layers, given.links, group)


def row_by_row(given: SplitGeneration) -> tuple[float, float, float]:
    """Seconds of both parts, without passes over prompts, and the tokens of what is left, for rows
    whose lengths are known; engines look after every token."""
    engine = engine_in(given)

    def step(rows: float, cached: float) -> float:
        return engine.decode(rows, cached).total

    number, finishing = given.engines.data, given.finish.data
    at_once = given.load.max_concurrent_sequences
    lengths = spread_lengths(given.response, given.call.prompts)
    rows = [Row(given.prompt.mean, each) for each in lengths]
    runs = [run_engine(rows[each::number], at_once, step) for each in range(number)]
    ends = {i: runs[i % number].ends[i // number] for i in range(len(rows))}
    in_order = sorted(ends, key=ends.__getitem__)
    left = sorted(in_order[-given.threshold_rows :])
    trigger = ends[in_order[-given.threshold_rows - 1]]
    done = {i: runs[i % number].generated_tokens(i // number, trigger) for i in left}
    held: list[list[int]] = [[i for i in left if i % number == e] for e in range(number)]
    for engine_rows in held[finishing:]:
        for i in engine_rows:
            min(held[:finishing], key=len).append(i)
    tails = [
        run_engine(
            [Row(given.prompt.mean + done[i], rows[i].left_tokens - done[i]) for i in each],
            at_once,
            step,
        )
        for each in held[:finishing]
    ]
    return trigger, max(max(each.ends) for each in tails), sum(lengths[i] for i in left)


@pytest.mark.parametrize(("mean", "threshold"), [(300, 64), (600, 64), (600, 24), (1000, 100)])
@pytest.mark.parametrize("finishing", [1, 2, 4])
def test_row_by_row_it_takes_about_as_long(mean: float, threshold: int, finishing: int) -> None:
    found = split(
        H100,
        LLAMA_2_7B,
        prompts=512,
        number=4,
        finishing=finishing,
        threshold=threshold,
        prompt=equal(200),
        response=Lengths(mean, 2048),
    )
    generated, finished, tokens = row_by_row(found)
    engine = engine_in(found)
    first = prefill_seconds(engine, 128, found.prompt).total
    looks = found.generate_seconds.data_communication
    assert found.generate_seconds.total - first - looks == pytest.approx(generated, rel=0.06)
    assert found.rows_left == pytest.approx(threshold, rel=0.1)
    left = found.rows_left * (found.tokens + found.left.mean)
    assert left == pytest.approx(tokens, rel=0.1)
    moved = found.rows_left / finishing * (1 - finishing / 4)
    again = prefill_seconds(engine, moved, equal(200 + found.tokens)).total
    assert found.finish_seconds.total - again == pytest.approx(finished, rel=0.15)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(2, 100),
    st.integers(1, 8),
    st.integers(1, 8),
    st.floats(0.01, 0.99),
    st.floats(20, 2000),
    st.sampled_from([4, 1024]),
)
def test_both_parts_take_no_less_than_the_call(
    prompts: int, number: int, finishing: int, share: float, mean: float, at_once: int
) -> None:
    """Also where engines have a few responses each, and not all of them equally many."""
    found = split_at(share, prompts, number, min(number, finishing), mean, at_once)
    total = found.generate_seconds.total + found.finish_seconds.total
    assert total >= in_one(found) * 0.99
