"""Batches of few rows, and of few that count: no rows, one row, one token, nothing valid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ModelCall
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.requests import CallRequest, ColumnSource, InputBatch, Segment
from rlhf_runtime.data.row_record import row_record
from rlhf_runtime.dataplane.columns import Column, pack, pack_texts
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex

from ...depth import sample

WORLD_SIZES = (1, 3)
VOCABULARY = 24
MAX_RESPONSE = 12
GARBAGE = 7.0
"""The score of a row that has none."""
PREFERENCES = (1, -1, 0, 1)
"""Of a prompt's rows, as far as it has so many."""
PER_TOKEN = {
    "advantages": (3, 1.0, 0.0),
    "returns": (4, 1.0, 0.0),
    "critic_values": (5, 0.3, 0.0),
    "cost_critic_values": (10, 0.3, 0.0),
    "turn_rewards": (11, 0.3, 0.2),
    "token_rewards": (6, 1.0, 0.0),
    "rollout_log_probs": (7, 0.3, -3.0),
    "actor_log_probs": (8, 0.3, -3.0),
    "reference_log_probs": (9, 0.3, -3.0),
}
"""Columns of random numbers: a seed, how far they are spread, and their mean."""


@dataclass(frozen=True)
class FewRows:
    """A batch: every prompt has the same number of rows."""

    lengths: tuple[tuple[int, ...], ...]
    """Tokens of the responses to each prompt."""
    valid: tuple[int, ...] | None = None
    """Whether each row has a score. None: all have."""
    mask: tuple[int, ...] | None = None
    """Whether each token of all responses counts. None: all do."""
    rows_per_prompt: int = 2
    """Where there is no prompt."""

    @cached_property
    def shape(self) -> BatchShape:
        """Prompts, and rows of each."""
        rows = {len(of_prompt) for of_prompt in self.lengths} or {self.rows_per_prompt}
        (rows_per_prompt,) = rows
        return BatchShape(len(self.lengths), rows_per_prompt)

    @cached_property
    def groups(self) -> np.ndarray:
        """The prompt of each row."""
        return np.repeat(np.arange(self.shape.num_groups), self.shape.rows_per_group)

    @cached_property
    def response_lengths(self) -> np.ndarray:
        """Tokens of each row's response."""
        return np.array([n for of_prompt in self.lengths for n in of_prompt], dtype=np.int32)

    @cached_property
    def index(self) -> ShardIndex:
        """All rows."""
        rows = np.arange(self.shape.num_rows, dtype=np.int64)
        return ShardIndex(rows, self.groups * 7, self.response_lengths + 3)

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Every column that a call may read; numbers of tokens that do not count are NaN."""
        draw, groups, lengths = np.random.default_rng(1), self.groups, self.response_lengths
        count, num_tokens = len(groups), int(lengths.sum())
        valid = np.array(self.valid or [1] * count, dtype=np.int8)
        scores, costs = (draw.choice([0.0, 0.25, 1.0, 3.0], count) for _ in range(2))
        prompts = [draw.integers(1, VOCABULARY, size=3) for _ in range(self.shape.num_groups)]
        preference = [PREFERENCES[row % self.shape.rows_per_group] for row in range(count)]
        records = [
            row_record("?", json.dumps({"prompt": f"{n}?"}), "odd" if n % 2 else "even")
            for n in groups
        ]
        columns = {
            "prompt_tokens": pack([prompts[group] for group in groups], np.int32),
            "prompt_id": Column(groups * 7),
            "response_tokens": Column(
                draw.integers(1, VOCABULARY, size=num_tokens).astype(np.int32), lengths
            ),
            "record": pack_texts(records),
            "response_text": pack_texts([f"answer {row}" for row in range(count)]),
            "reward_scores": Column(np.where(valid, scores, GARBAGE).astype(np.float32)),
            "reward_valid": Column(valid),
            "cost_scores": Column(costs.astype(np.float32)),
            "cost_valid": Column(1 - (np.arange(count) % 4 == 3).astype(np.int8)),
            "baseline": Column(costs[::-1].astype(np.float32)),
            "has_baseline": Column((np.arange(count) % 3 != 1).astype(np.int8)),
            "reward_learned_scores": Column(draw.standard_normal(count).astype(np.float32)),
            "multiplier": Column(np.full(count, 0.3, dtype=np.float32)),
            "finished": Column((np.arange(count) % 4 != 1).astype(np.int8)),
            "retained": Column((np.arange(count) % 5 != 2).astype(np.int8)),
            "preference": Column(np.array(preference, dtype=np.int8)),
        }
        for name, (seed, scale, mean) in PER_TOKEN.items():
            values = mean + scale * np.random.default_rng(seed).standard_normal(num_tokens)
            columns[name] = Column(values.astype(np.float32), lengths)
        return columns if self.mask is None else columns | self._masked(columns)

    def _masked(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        mask = np.array(self.mask, dtype=np.int8)
        numbers = {
            name: Column(np.where(mask, columns[name].values, np.nan).astype(np.float32), lengths)
            for name, lengths in ((name, columns[name].lengths) for name in PER_TOKEN)
        }
        return numbers | {"response_mask": Column(mask, self.response_lengths)}


BATCHES: dict[str, FewRows] = {
    "no rows": FewRows(()),
    "one row": FewRows(((3,),)),
    "one token": FewRows(((1,),)),
    "one row without tokens": FewRows(((0,),)),
    "one prompt": FewRows(((2, 5, 1, 2),)),
    "rows of one token": FewRows(((1, 1), (1, 1), (1, 1))),
    "rows without tokens": FewRows(((0, 0), (0, 0))),
    "one row with tokens": FewRows(((0, 0), (0, 2))),
    "all invalid": FewRows(((2, 5, 1), (3, 1, 4)), valid=(0,) * 6),
    "one row, invalid": FewRows(((3,),), valid=(0,)),
    "one valid row": FewRows(((2, 5), (3, 1), (2, 2)), valid=(0, 0, 0, 1, 0, 0)),
    "all masked": FewRows(((2, 3), (1, 4)), mask=(0,) * 10),
    "one row, masked": FewRows(((3,),), mask=(0, 0, 0)),
    "one token counts": FewRows(((2, 3), (1, 4)), mask=(0, 0, 0, 1, *(0,) * 6)),
    "many rows": FewRows(
        ((2, 5, 1, 0), (3, 1, 4, 2), (6, 2, 2, 3), (1, 1, 7, 2), (2, 2, 3, 1)),
        valid=(1, 1, 0, 1, *(1,) * 4, 0, 0, 0, 1, 0, 0, 0, 0, *(1,) * 4),
        mask=tuple(int(token % 3 != 1) for token in range(50)),
    ),
}


def some_batches(row: int, names: Sequence[str] = tuple(BATCHES)) -> Sequence[str]:
    """No rows, and the batches that a session tries in a row of a matrix: all of them at night."""
    return ("no rows", *sample(row, [name for name in names if name != "no rows"], 4))


def inputs_of(
    batch: FewRows,
    columns: Mapping[str, Column],
    call: ModelCall,
    rank: int,
    size: int,
    mini_batches: int = 1,
    texts: FewRows | None = None,
) -> CallInputs:
    """What a rank is given for a call. The first of the shards has no rows.

    Args:
        batch: the call's.
        columns: of the batch.
        call: reads some of them.
        rank: of the ranks that share the batch.
        size: how many they are.
        mini_batches: parts of the batch.
        texts: the batch of an auxiliary loss.
    """
    middle, end = batch.shape.num_rows // 2, batch.shape.num_rows
    parts = [np.arange(*bounds) for bounds in ((0, 0), (0, middle), (middle, end))]
    shards = [
        Shard(batch.index.take(part), {name: columns[name].take(part) for name in call.reads})
        for part in parts
    ]
    source = ColumnSource((Segment(len(shards), {name: name for name in call.reads}),))
    ordered = [InputBatch(batch.shape, (source,))]
    if texts is not None:
        (names,) = call.auxiliary_reads
        part = Segment(1, {name: name for name in names})
        ordered.append(InputBatch(texts.shape, (ColumnSource((part,)),)))
        shards.append(Shard(texts.index, {name: texts.columns[name] for name in names}))
    request = CallRequest(call, 1, GraphName.STEP, "test", tuple(ordered), mini_batches)
    return CallInputs(request, shards, Coordinates(data=rank, data_size=size))


def runs_of(column: Column) -> list[list[float]]:
    """Each row's values as a list."""
    if column.lengths is None:
        return [[value] for value in column.values.tolist()]
    return [run.tolist() for run in column.runs()]


def in_order(shards: Sequence[tuple[ShardIndex, Mapping[str, Column]]], name: str) -> list[object]:
    """A column's runs from the shards of all ranks, in the order of their rows."""
    rows = np.concatenate([index.rows for index, _ in shards])
    runs = [run for _, columns in shards for run in runs_of(columns[name])]
    assert sorted(rows.tolist()) == list(range(len(rows))), "each row is on one rank"
    return [runs[position] for position in np.argsort(rows)]
