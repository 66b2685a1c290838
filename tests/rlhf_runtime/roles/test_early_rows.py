"""Rows leave an engine as their responses end, and come to what the call returns at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_api.plan import GraphName
from rlhf_runtime.calls.ended_rows import EndedRows, ScoreCall
from rlhf_runtime.dataplane.columns import Column, Rows, pack, pack_texts
from rlhf_runtime.dataplane.partition import RowSubset
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.engines.response_batch import BatchGenerator, ResponseBatch, Sampling
from rlhf_runtime.roles.early_rows import SEND_STEPS, EarlyRows
from rlhf_runtime.roles.sequence_migration import Prompts

from ..engines.scripted_engine import ScriptedEngine

ROWS, MAX_TOKENS, FIRST = 24, 3 * SEND_STEPS, 100
CALLS = (ScoreCall("reward.score", "reward"),)


class Decoder:
    """Notes the rows that it makes texts of."""

    def __init__(self) -> None:
        self.num_rows = 0

    def __call__(self, tokens: Column) -> list[str]:
        self.num_rows += tokens.num_rows
        return [" ".join(map(str, run.tolist())) for run in tokens.runs()]


def generate(
    tensor: int = 0,
    calls: tuple[ScoreCall, ...] = CALLS,
    subset: RowSubset = RowSubset.ALL,
    has_host: bool = True,
) -> tuple[list[EndedRows], ResponseBatch, EarlyRows, Decoder, list[int]]:
    """What is sent while all responses are generated, and the steps at which it was."""
    engine = ScriptedEngine()
    engine.publish(7)
    numbers: Rows = np.arange(FIRST, FIRST + ROWS, dtype=np.int64)
    prompts = Prompts(
        ShardIndex(numbers, numbers // 2, np.ones(ROWS, dtype=np.int32)),
        {
            "prompt_tokens": pack([[row % 5] for row in range(ROWS)], np.int32),
            "record": pack_texts([f"row {row}" for row in numbers]),
        },
    )
    sampling = Sampling(1.0, list(range(ROWS)))
    batch = BatchGenerator(engine).start(prompts.columns["prompt_tokens"], sampling, 7, MAX_TOKENS)
    inputs: Any = SimpleNamespace(
        at=Coordinates(data=0, data_size=1, tensor=tensor, tensor_size=2),
        score_calls=calls,
        step=3,
        graph=GraphName.STEP,
        repetition=1,
        round=2,
        subset=subset,
    )
    sent: list[EndedRows] = []
    sent_at: list[int] = []
    num_steps = 0

    def tick() -> None:
        nonlocal num_steps
        num_steps += 1

    def send(ended: EndedRows) -> None:
        sent.append(EndedRows.from_bytes(ended.to_bytes()))
        sent_at.append(num_steps)

    decode = Decoder()
    early = EarlyRows(
        inputs,
        prompts,
        lambda: batch.has_ended,
        batch.generated,
        decode,
        send if has_host else None,
    )
    batch.run(early.after_step(tick))
    assert num_steps == MAX_TOKENS
    return sent, batch, early, decode, sent_at


def test_rows_are_sent_every_few_steps_and_once() -> None:
    sent, batch, early, decode, sent_at = generate()
    assert sent_at == [SEND_STEPS, 2 * SEND_STEPS, 3 * SEND_STEPS]
    rows = [row for ended in sent for row in ended.rows]
    assert sorted(rows) == list(range(FIRST, FIRST + ROWS)) and rows != sorted(rows)
    generated = batch.generated()
    texts = Decoder()(generated.tokens)
    for ended in sent:
        places = [row - FIRST for row in ended.rows]
        assert ended.texts == tuple(texts[place] for place in places)
        assert ended.records == tuple(f"row {row}" for row in ended.rows)
        assert ended.finished == tuple(generated.finished[place] == 1 for place in places)
        assert ended.slice_rows == range(FIRST, FIRST + ROWS)
        assert (ended.calls, ended.step, ended.repetition, ended.round) == (CALLS, 3, 1, 2)
    assert {True, False} == {flag for ended in sent for flag in ended.finished}
    assert decode.num_rows == ROWS


def test_a_text_is_decoded_once() -> None:
    _, batch, early, decode, _ = generate()
    rows: Rows = np.arange(FIRST, FIRST + ROWS + 1, dtype=np.int64)[::-1]
    tokens = batch.generated().tokens.take(np.arange(ROWS)[::-1])
    expected = Decoder()(tokens)
    assert early.texts(rows[1:], tokens) == expected
    assert decode.num_rows == ROWS
    assert early.texts(rows[:1], pack([[5, 6]], np.int32)) == ["5 6"], "it was not sent"


@pytest.mark.parametrize("subset", [RowSubset.FINISHED, RowSubset.UNFINISHED])
def test_rows_that_are_scored_together_are_not_known_where_some_move(subset: RowSubset) -> None:
    sent, *_ = generate(subset=subset)
    assert sent and all(ended.slice_rows is None for ended in sent)


@pytest.mark.parametrize("settings", [{"tensor": 1}, {"calls": ()}, {"has_host": False}])
def test_nothing_is_sent_without_somebody_who_wants_it(settings: dict[str, Any]) -> None:
    """Nor by the other ranks of an engine, which have the same responses."""
    sent, batch, early, decode, _ = generate(**settings)
    assert sent == [] and decode.num_rows == 0
    tokens = batch.generated().tokens
    rows: Rows = np.arange(FIRST, FIRST + ROWS, dtype=np.int64)
    assert early.texts(rows, tokens) == Decoder()(tokens)
