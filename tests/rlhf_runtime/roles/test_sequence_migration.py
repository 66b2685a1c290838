"""What an engine leaves to others, and what it takes over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_api.plan_fusion import StageFusion
from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.dataplane.columns import Column, pack
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.engines.response_batch import Generated, Sampling
from rlhf_runtime.roles.sequence_migration import Prompts, SequenceMigration, assign_rows

ENGINES = Mesh(pool="local", data=3)
FINISH = Mesh(pool="local", first_rank=1, data=2)


class Ranks:
    """All engines: what they report is summed with what the others do."""

    def __init__(self, others: list[int]) -> None:
        self._others = torch.tensor(others)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values + self._others


class FakeResponses:
    """Responses of which each token is the row's number; the first rows have ended."""

    def __init__(self, lengths: list[int], num_ended: int) -> None:
        self.lengths, self.num_ended = lengths, num_ended
        self.aborted = False
        self.added: list[tuple[list[int], int, int]] = []

    @property
    def has_ended(self) -> np.ndarray:
        return np.arange(len(self.lengths)) < self.num_ended

    def abort(self) -> None:
        self.aborted = True

    def add(
        self,
        prompts: Column,
        sampling: Sampling,
        max_tokens: list[int],
        *,
        num_generated: list[int],
        keeps_prefixes: bool,
    ) -> None:
        assert keeps_prefixes, "as if they had been here from the start"
        for prompt, most, generated in zip(prompts.runs(), max_tokens, num_generated, strict=True):
            self.added.append((prompt.tolist(), most, generated))
            self.lengths.append(most)

    def generated(self, rows: np.ndarray) -> Generated:
        tokens = pack([[row] * self.lengths[row] for row in rows.tolist()], np.int32)
        log_probs = Column(tokens.values.astype(np.float32), tokens.lengths)
        sets = pack([sets_of(run.tolist()) for run in tokens.runs()], np.int32)
        return Generated(tokens, log_probs, (StopReason.END_TOKEN,) * len(rows), sets)


def sets_of(tokens: list[int]) -> list[int]:
    """Encoded sets of each token alone: entries, then ids."""
    return [1] * len(tokens) + tokens


def sets_in(column: Column | None) -> list[list[int]]:
    assert column is not None
    return [run.tolist() for run in column.runs()]


def at(engine: int, mesh: Mesh) -> Coordinates:
    return Coordinates(data=engine, data_size=mesh.data)


def rest_of(engine: int, others: list[int], threshold: int = 4) -> SequenceMigration:
    fusion = StageFusion(threshold_rows=threshold, calls=("critic.values",))
    finish = SimpleNamespace(graph=GraphName.STEP, kind=CallKind.FINISH, role="actor", mesh=FINISH)
    plan: Any = SimpleNamespace(
        generation=lambda role: SimpleNamespace(fusion=fusion, mesh=ENGINES), calls=[finish]
    )
    ranks: Any = Ranks(others)
    return SequenceMigration(plan, "actor", ranks, at(engine, ENGINES))


def prompts_of(rows: list[int]) -> Prompts:
    """Each prompt is its row's number, once."""
    numbers = np.array(rows, dtype=np.int64)
    index = ShardIndex(numbers, numbers, np.ones(len(rows), dtype=np.int32))
    return Prompts(index, {"prompt_tokens": pack([[row] for row in rows], np.int32)})


def test_rows_of_all_engines_are_few_together() -> None:
    rest = rest_of(1, [2, 0, 2], threshold=5)
    assert not rest.is_due(2)
    assert rest.is_due(1)


def test_ranks_of_one_engine_count_its_rows_once() -> None:
    rest = rest_of(1, [2, 2, 0], threshold=4)
    rest._at = Coordinates(data=1, data_size=3, tensor=1, tensor_size=2)
    assert rest.is_due(2)


def test_an_engine_that_does_not_finish_leaves_what_it_has() -> None:
    rest, responses = rest_of(0, [0, 1, 0]), FakeResponses([5, 2, 3], num_ended=1)
    assert rest.is_due(2)
    running = np.array([1, 2])
    made: Any = responses
    left = rest.hand_over(prompts_of([70, 80]), made, running, 0.5)
    assert responses.aborted and rest.temperature == 0.5
    assert left.index.rows.tolist() == [70, 80]
    tokens = [run.tolist() for run in left.columns["response_tokens"].runs()]
    assert tokens == [[1, 1], [2, 2, 2]]
    assert sets_in(left.columns["kept_tokens"]) == list(map(sets_of, tokens))


def test_an_engine_that_finishes_goes_on_with_its_own_and_its_share() -> None:
    """It has two rows, the other one that finishes has three: of three rows that come it gets the
    first and the second of the rest, by loads 2, 3."""
    rest, responses = rest_of(1, [3, 0, 3], threshold=8), FakeResponses([5, 2, 3], num_ended=1)
    assert rest.is_due(2)
    made: Any = responses
    own = rest.hand_over(prompts_of([10, 11]), made, np.array([1, 2]), 1.0)
    assert not responses.aborted and not len(own.index.rows)
    given_away = Shard(
        ShardIndex(np.array([1, 4, 6]), np.array([1, 4, 6]), np.ones(3, dtype=np.int32)),
        {
            "prompt_tokens": pack([[1], [4], [6]], np.int32),
            "response_tokens": pack([[90], [91, 92], []], np.int32),
            "rollout_log_probs": pack([[0.1], [0.2, 0.3], []], np.float32),
            "kept_tokens": pack([sets_of([90]), sets_of([91, 92]), []], np.int32),
        },
    )

    def load(rows: np.ndarray) -> dict[str, Column]:
        places = np.searchsorted(given_away.index.rows, rows)
        return {name: column.take(places) for name, column in given_away.columns.items()}

    inputs: Any = SimpleNamespace(index=given_away.index, load=load, at=at(0, FINISH))
    taken = rest.assigned_rows(inputs)
    assert taken.index.rows.tolist() == [1, 4], "then both have three, and the first is next"
    rest.resume(taken, Sampling(1.0, [0, 0]), 8)
    assert responses.added == [([1, 90], 7, 1), ([4, 91, 92], 6, 2)]
    assert rest.finishing(taken).index.rows.tolist() == [10, 11, 1, 4]
    complete = [[1] * 2, [2] * 3, [90, *[3] * 7], [91, 92, *[4] * 6]]
    assert [run.tolist() for run in rest.generated(taken).tokens.runs()] == complete
    assert sets_in(rest.generated(taken).kept_tokens) == list(map(sets_of, complete))
    responses.num_ended = 4
    assert rest.has_ended(taken).tolist() == [True, True, True, False]
    some = rest.generated(taken, np.array([0, 2]))
    assert [run.tolist() for run in some.tokens.runs()] == [complete[0], complete[2]]
    assert sets_in(some.kept_tokens) == [sets_of(complete[0]), sets_of(complete[2])]
    assert some.log_probs.values.tolist() == pytest.approx([1, 1, 0.1, *[3] * 7])


@given(st.integers(0, 40), st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_rows_are_dealt_to_who_has_fewest(num_rows: int, loads: list[int]) -> None:
    after = list(loads)
    for owner in assign_rows(num_rows, loads).tolist():
        assert after[owner] == min(after)
        after[owner] += 1
    assert sum(after) == sum(loads) + num_rows
