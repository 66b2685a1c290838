"""The rows of a call, on an engine that draws its tokens; which does what engines must do."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_api.plan_fusion import CHECK_STEPS
from rlhf_runtime.dataplane.columns import Column, pack
from rlhf_runtime.engines.generation import GenerationEngine
from rlhf_runtime.engines.response_batch import BatchGenerator, Sampling
from rlhf_runtime.errors import StaleWeights

from .generation_contract import CONTRACT, EngineUnderTest
from .scripted_engine import STOP, VOCABULARY, ScriptedEngine

MAX_TOKENS = 12
ROWS = 40


def prompts() -> Column:
    return pack([[row, row % 3] for row in range(ROWS)], np.int32)


def published(version: int = 7) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.publish(version)
    return engine


SAMPLING = Sampling(1.0, range(ROWS))


@pytest.mark.parametrize("scenario", list(CONTRACT))
def test_an_engine_without_a_model_is_one(scenario: str) -> None:
    engine: GenerationEngine = published()
    CONTRACT[scenario](EngineUnderTest(engine, prompts(), MAX_TOKENS, [STOP]))


def test_responses_are_in_the_order_of_their_prompts() -> None:
    ticks: list[int] = []
    generator = BatchGenerator(published())
    got = generator.generate(prompts(), SAMPLING, 7, MAX_TOKENS, lambda: ticks.append(1))
    assert len(ticks) == MAX_TOKENS, "once after each step"
    for row, run in enumerate(got.tokens.runs()):
        alone = generator.generate(
            prompts().take(np.array([row])), Sampling(1.0, [row]), 7, MAX_TOKENS
        )
        assert alone.tokens.values.tolist() == run.tolist()
        assert bool(got.finished[row]) == (run[-1] == STOP)
    assert 0 < got.finished.sum() < ROWS
    assert got.tokens.values.dtype == np.int32 and got.log_probs.values.dtype == np.float32
    assert got.log_probs.values == pytest.approx(-np.log(VOCABULARY))


def test_nothing_is_generated_with_other_weights() -> None:
    engine = published(7)
    with pytest.raises(StaleWeights, match="got version 7, allowed version 8"):
        BatchGenerator(engine).generate(prompts(), SAMPLING, 8, MAX_TOKENS)
    assert not engine.has_work and not engine.effects


def test_a_call_waits_for_the_end_of_the_one_before_it() -> None:
    generator = BatchGenerator(published())
    first = generator.start(prompts(), SAMPLING, 7, MAX_TOKENS)
    with pytest.raises(StaleWeights, match="an earlier call has not ended"):
        generator.start(prompts(), SAMPLING, 7, MAX_TOKENS)
    first.run()
    generator.start(prompts(), SAMPLING, 7, MAX_TOKENS).run()


def test_rows_that_are_cut_have_their_responses_so_far() -> None:
    complete = BatchGenerator(published()).generate(prompts(), SAMPLING, 7, MAX_TOKENS)
    batch = BatchGenerator(published()).start(prompts(), SAMPLING, 7, MAX_TOKENS)
    left: list[int] = []
    batch.run_until(lambda running: not left.append(running))
    ended = batch.has_ended
    assert left == [batch.num_running] == [int((~ended).sum())] and 0 < left[0] < ROWS
    batch.abort()
    assert batch.has_ended.tolist() == ended.tolist(), "they are not complete"
    got = batch.generated()
    assert not got.finished[~ended].any()
    for row, (run, whole) in enumerate(zip(got.tokens.runs(), complete.tokens.runs(), strict=True)):
        assert run.tolist() == whole[: len(whole) if ended[row] else CHECK_STEPS].tolist()


def test_an_idle_engine_is_asked_whether_others_have_enough() -> None:
    batch = BatchGenerator(published()).start(pack([], np.int32), Sampling(1.0, []), 7, MAX_TOKENS)
    answers = iter([False, False, True])
    batch.run_until(lambda running: next(answers))
    assert next(answers, None) is None


def test_each_call_forgets_prompts_once_and_rows_that_come_later_do_not() -> None:
    engine = published()
    generator = BatchGenerator(engine)
    for calls in (1, 2):
        batch = generator.start(prompts(), SAMPLING, 7, MAX_TOKENS)
        batch.run()
        batch.add(prompts(), SAMPLING, [MAX_TOKENS] * ROWS, keeps_prefixes=True)
        batch.run()
        assert engine.effects == ["forget prompts"] * calls
        assert batch.generated().tokens.num_rows == 2 * ROWS
