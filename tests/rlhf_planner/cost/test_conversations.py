"""Conversations: by hand, monotone, and against a simulation of every decode step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import Precision
from rlhf_planner.cost.analytic_layers import analytic_layers
from rlhf_planner.cost.conversations import turns_of
from rlhf_planner.cost.generation import generate_seconds
from rlhf_planner.cost.hardware import HARDWARE, Hardware
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.cost.seconds import CallSeconds
from rlhf_planner.memory.generation import GenerationCall, GenerationLoad
from rlhf_planner.problem.problem import ConversationWorkload
from rlhf_sizing.shape import DecoderShape

from .conversation_run import ConversationRun, Tools, random_conversations, run_conversations
from .simple import IDEAL, LLAMA_2_7B, SMALL, equal, links_of
from .test_generation import ROOMY, a_load

COUNTING = replace(IDEAL, engine_step_seconds=1.0)
"""A second for each step, and nothing else."""
ONE_TURN = ConversationWorkload(
    turns=1.0,
    max_turns=8,
    sampled_share=1.0,
    tool_seconds=0.0,
    delay_steps=16,
    concurrency=10**6,
)
FIVE_TURNS = replace(ONE_TURN, turns=5.0, max_turns=5, sampled_share=0.6, tool_seconds=50.0)
"""60 of 100 tokens are sampled, in turns of 12."""
ALONE = GenerationCall(prompts=1, samples=1)


def generated(
    conversations: ConversationWorkload | None,
    call: GenerationCall = ALONE,
    response: Lengths | None = None,
    *,
    hardware: Hardware = COUNTING,
    shape: DecoderShape = SMALL,
    engines: int = 1,
    cache_bytes: int = ROOMY,
    at_once: int = 1024,
) -> CallSeconds:
    load: GenerationLoad = a_load(shape, at_once=at_once)
    layers = analytic_layers(hardware, shape, Precision.BFLOAT16)
    mesh, links = Mesh(pool="a", data=engines), links_of(hardware)
    response = response or equal(100)
    return generate_seconds(
        load, call, mesh, cache_bytes, equal(10), response, layers, links, conversations
    )


def test_one_conversation_waits_for_each_of_its_answers() -> None:
    """60 steps, a pass over the prompt, one over all answers, and 4 waits of 50 s; whatever the
    delay, as nothing else is decoded meanwhile."""
    for delay in (1, 16, 1000, None):
        done = generated(replace(FIVE_TURNS, delay_steps=delay))
        assert done.tools == pytest.approx(4 * 50)
        assert done.total == pytest.approx(60 + 1 + 1 + 4 * 50, rel=1e-6)


def test_few_conversations_at_once_take_turns() -> None:
    """One is live at a time: those that follow begin after the delay, which the engine skips."""
    one_live = replace(FIVE_TURNS, concurrency=1, tool_seconds=0.0)
    done = generated(one_live, GenerationCall(prompts=6, samples=1))
    assert done.total == pytest.approx(6 * 60 + 1 + 1, rel=1e-6)
    assert done.tools == 0


def test_many_conversations_leave_out_only_the_delays() -> None:
    """Of equal ones all are decoded in 60 of 60 + 4 x 16 steps, so that the engine is never idle,
    and tools have answered after 16 steps."""
    many = GenerationCall(prompts=200, samples=1)
    done = generated(replace(FIVE_TURNS, tool_seconds=16.0), many)
    assert done.tools == pytest.approx(0, abs=1e-6)
    # 2,000 tokens of prompts and 8,000 of answers.
    assert done.total == pytest.approx(60 + 4 * 16 + 1 + 1, rel=1e-3)


def test_slow_tools_stretch_the_delays_of_many_conversations() -> None:
    """16 steps take 50 s, as turns end in every step."""
    many = GenerationCall(prompts=1000, samples=1)
    done = generated(FIVE_TURNS, many)
    steps = 60 + 4 * 16
    assert done.tools == pytest.approx(steps * (50 / 16 - 1), rel=0.01)
    assert done.total == pytest.approx(steps * 50 / 16 + 2 + 5, rel=0.01)


def test_the_fastest_order_waits_for_the_tools_of_the_longest() -> None:
    """With many no engine is idle, but every conversation takes its steps and its tools."""
    many = GenerationCall(prompts=1000, samples=1)
    done = generated(replace(FIVE_TURNS, delay_steps=None), many)
    assert done.tools == pytest.approx(0, abs=1e-3)
    assert done.total == pytest.approx(60 + 4 * 50 + 2 + 5, rel=0.01)


def test_tools_are_shared_by_the_conversations_that_are_live() -> None:
    """At least calls times seconds over these, in both orders, and no more than that with all steps
    where tools take nearly all of the time."""
    slow = replace(FIVE_TURNS, tool_seconds=10_000.0, concurrency=10)
    for delay in (1, None):
        done = generated(replace(slow, delay_steps=delay), GenerationCall(100, 1))
        share = 100 * 4 * 10_000 / 10
        assert done.total >= share * 0.99
    assert done.total == pytest.approx(share, rel=0.05)


def test_answers_are_computed_like_prompts() -> None:
    """40 of 100 tokens. They attend to as many tokens before them as sampled ones, and need no
    logits, of 512 weights."""
    answered = replace(FIVE_TURNS, tool_seconds=0.0)
    sampled, done = (
        generated(workload, hardware=IDEAL).compute
        for workload in (replace(answered, sampled_share=1.0), answered)
    )
    assert (sampled - done) * 2e12 == pytest.approx(40 * 2 * 512, rel=1e-6)


def test_more_turns_than_the_limit_are_longer_ones() -> None:
    """A response of four times the mean would have 16 gaps. It has 4, in its first 100 tokens, and
    is sampled like others from there on."""
    response = Lengths(100, 400)
    turns = turns_of(FIVE_TURNS, response, 1000, Mesh(pool="a", data=1), 8)
    assert turns is not None and turns.last_gap_tokens == 100
    fastest = replace(FIVE_TURNS, delay_steps=None)
    done = generated(fastest, GenerationCall(1000, 1), response, at_once=10**5)
    longest = response.expected_maximum(1000)
    # The last ones leave the engine idle; 2 passes over prompts, and 5 over answers.
    assert done.total == pytest.approx(60 + 4 * 50 + 0.6 * (longest - 100) + 2 + 5, rel=1e-3)


def test_concurrency_is_that_of_a_node() -> None:
    """Eight engines of a node share it, and sixteen are on two nodes."""
    call = GenerationCall(prompts=1600, samples=1)
    limited = replace(FIVE_TURNS, tool_seconds=0.0, concurrency=80)
    own = generated(replace(limited, concurrency=10), GenerationCall(100, 1))
    two_nodes = generated(limited, call, engines=16)
    assert two_nodes.total == pytest.approx(own.total)


def test_engines_decode_no_more_than_they_may() -> None:
    """Half of the live conversations wait, so that twice as many are live."""
    half = replace(FIVE_TURNS, tool_seconds=0.0, delay_steps=15)
    call = GenerationCall(prompts=400, samples=1)
    limited = generated(half, call, at_once=50)
    same = generated(replace(half, concurrency=100), call)
    assert limited.total == pytest.approx(same.total)


@pytest.mark.parametrize("response", [equal(100), Lengths(50, 100), Lengths(20, 100, 0.1)])
@pytest.mark.parametrize("prompts", [1, 50, 600])
def test_conversations_of_one_turn_are_responses(response: Lengths, prompts: int) -> None:
    """To the last bit."""
    for hardware, shape in ((COUNTING, SMALL), (HARDWARE["H100"], LLAMA_2_7B)):
        call = GenerationCall(prompts, 2)
        one, none = (
            generated(each, call, response, hardware=hardware, shape=shape)
            for each in (ONE_TURN, None)
        )
        assert one == none and none.tools == 0


workloads = st.builds(
    ConversationWorkload,
    turns=st.floats(1.1, 10.0),
    max_turns=st.just(1000),
    sampled_share=st.floats(0.1, 1.0),
    tool_seconds=st.sampled_from([0.0, 0.01, 0.3, 2.0, 30.0]),
    delay_steps=st.sampled_from([1, 16, 200, None]),
    concurrency=st.sampled_from([1, 8, 64, 512]),
)


@settings(deadline=None)
@given(workloads, st.integers(1, 600), st.floats(1.05, 10), st.floats(28, 36), st.floats(1, 4))
def test_more_turns_and_slower_tools_never_take_less(
    workload: ConversationWorkload, prompts: int, ratio: float, log_bytes: float, factor: float
) -> None:
    """More turns below their limit. A larger cache never takes more, as bounds need it. Of more
    conversations at once some may have more turns: a tenth."""
    call, response = GenerationCall(prompts, 4), Lengths(1000 / ratio, 1000)

    def seconds(changed: ConversationWorkload, bytes_factor: float = 1.0) -> float:
        done = generated(
            changed,
            call,
            response,
            hardware=HARDWARE["H100"],
            shape=LLAMA_2_7B,
            engines=2,
            cache_bytes=int(bytes_factor * 2**log_bytes),
            at_once=256,
        )
        assert min(done.parts.values()) >= 0
        return done.total

    before = seconds(workload) * (1 - 1e-6)
    assert seconds(replace(workload, turns=workload.turns * factor)) >= before
    slower = replace(workload, tool_seconds=workload.tool_seconds * factor + 0.01)
    assert seconds(slower) >= before
    more = replace(workload, concurrency=int(workload.concurrency * factor))
    assert seconds(workload) >= seconds(more) / 1.1
    assert seconds(workload) >= seconds(workload, factor) * (1 - 1e-6)


STEP, SEQUENCE = 0.01, 1e-4
"""Seconds of a step, and of a sequence in it."""


class Case:
    """A random case, and both of its times."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.number = draw.choice([1, 4, 16, 64, 200])
        self.capacity = draw.choice([1, 8, 64, 200])
        self.mean = draw.choice([60, 200, 400])
        self.response = Lengths(self.mean, self.mean * draw.choice([1.001, 1.5, 2.0, 4.0]))
        self.workload = ConversationWorkload(
            turns=1 + draw.choice([0.5, 1.0, 3.0, 6.0]),
            max_turns=draw.choice([8, 16]),
            sampled_share=draw.choice([0.4, 0.7, 1.0]),
            tool_seconds=draw.choice([0.0, 0.05, 0.3, 2.0]),
            delay_steps=draw.choice([4, 16, 64, None, None]),
            concurrency=self.capacity,
        )

    def expected(self) -> CallSeconds:
        """Seconds by the time model, without passes over prompts and answers."""
        hardware = replace(IDEAL, engine_step_seconds=STEP, engine_sequence_seconds=SEQUENCE)
        done = generated(
            self.workload, GenerationCall(self.number, 1), self.response, hardware=hardware
        )
        answers = self.number * (1 - self.workload.sampled_share) * self.mean
        passes = -(-10 * self.number // 8192) + -(-int(answers) // 8192)
        return replace(done, launch=done.launch - passes * STEP)

    def simulated(self) -> ConversationRun:
        """Mean seconds of some simulations, of more where there are few conversations."""
        runs = max(4, 160 // self.number)
        tools = Tools(self.workload.tool_seconds, self.workload.delay_steps)
        done = [
            run_conversations(
                random_conversations(
                    random.Random(run),
                    self.number,
                    self.response,
                    self.workload.turns - 1,
                    self.workload.max_turns - 1,
                    self.workload.sampled_share,
                ),
                self.capacity,
                tools,
                lambda sequences: STEP + SEQUENCE * sequences,
            )
            for run in range(runs)
        ]
        return ConversationRun(
            sum(run.seconds for run in done) / runs, sum(run.wait_seconds for run in done) / runs
        )


def test_times_are_those_of_a_simulation() -> None:
    """Seconds are within 15 % in 57 of 60 random cases, and within 25 % in all; seconds of waits
    differ by at most 15 % of all seconds in as many."""
    ratios, waits = [], []
    for seed in range(60):
        case = Case(seed)
        simulated, expected = case.simulated(), case.expected()
        ratios.append(expected.total / simulated.seconds)
        waits.append((expected.tools - simulated.wait_seconds) / simulated.seconds)
    assert min(ratios) > 0.75 and max(ratios) < 1.25
    assert sum(abs(ratio - 1) < 0.15 for ratio in ratios) >= 57
    assert sum(abs(wait) < 0.15 for wait in waits) >= 57
