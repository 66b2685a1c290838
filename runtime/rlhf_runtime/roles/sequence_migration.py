"""Moves unfinished responses to a few engines at the end of generation.

All engines count their running rows together, every few decode steps. So the same rows migrate
whenever the step is repeated, however fast each engine was. Rows of a finishing engine continue in
place. Rows of the others are prefilled again, prompt and generated tokens, on the finishing engine
with the fewest rows.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.stopping import TRAIN_ON_ALL
from rlhf_flow.step.columns import KEPT_TOKENS
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.dataplane.columns import Column, Rows, concatenate, pack
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.engines.kept_tokens import join_sets
from rlhf_runtime.engines.parallel import RankGroup
from rlhf_runtime.engines.response_batch import Generated, ResponseBatch, Sampling
from rlhf_runtime.roles.response_columns import response_columns


@dataclass(frozen=True)
class Prompts:
    """Rows of prompts to generate responses for."""

    index: ShardIndex
    """Its lengths count the tokens of the prompts alone."""
    columns: Mapping[str, Column]
    """Columns that exist before generation."""

    def take(self, positions: Rows) -> Prompts:
        """Select rows by position."""
        columns = {name: column.take(positions) for name, column in self.columns.items()}
        return Prompts(self.index.take(positions), columns)

    def then(self, other: Prompts) -> Prompts:
        """Append the rows of another; the result has the columns of this one."""
        first, second = self.index, other.index
        return Prompts(
            ShardIndex(
                np.concatenate([first.rows, second.rows]),
                np.concatenate([first.groups, second.groups]),
                np.concatenate([first.lengths, second.lengths]),
            ),
            {
                name: concatenate([column, other.columns[name]])
                for name, column in self.columns.items()
            },
        )


class SequenceMigration:
    """The unfinished rows of one engine in one step."""

    def __init__(self, plan: Plan, role: str, engines: RankGroup, at: Coordinates) -> None:
        """
        Args:
            plan: of the job.
            role: that generates.
            engines: the ranks of all of its engines.
            at: this rank's coordinates among them.
        """
        generation = plan.generation(role)
        assert generation is not None and generation.fusion is not None
        self._threshold = generation.fusion.threshold_rows
        self._engines, self._at = engines, at
        self._finishing = _finishing_engines(plan, role, generation.mesh)
        # Running rows of each engine.
        self._running_rows = np.zeros(at.data_size, dtype=np.int64)
        self._kept: Prompts | None = None

    def is_due(self, num_running: int) -> bool:
        """True if the running rows of all engines fit on the finishing ones. Collective.

        Args:
            num_running: running rows of this engine.
        """
        own = torch.zeros(self._at.data_size, dtype=torch.int64)
        # The ranks of one engine share its rows; its first rank counts them.
        own[self._at.data] = num_running if self._at.tensor == 0 else 0
        self._running_rows = self._engines.sum(own).numpy()
        return int(self._running_rows.sum()) <= self._threshold

    def hand_over(
        self, prompts: Prompts, responses: ResponseBatch, running: Rows, temperature: float
    ) -> Shard:
        """Return the rows that this engine hands to others; none if it is a finishing engine.

        Args:
            prompts: of the running rows.
            responses: of all rows.
            running: positions of the running rows among all.
            temperature: their sampling temperature.
        """
        self.temperature, self.responses = temperature, responses
        is_finishing = self._at.data in self._finishing
        self._running = running
        # A finishing engine keeps its sequences with their cache, and hands over none.
        if is_finishing:
            self._kept, prompts, running = prompts, prompts.take(running[:0]), running[:0]
        else:
            # Frees the cache; the finishing engines prefill these rows again.
            responses.abort()
        return _unfinished_shard(prompts, responses.generated(running))

    def assigned_rows(self, inputs: CallInputs) -> Prompts:
        """Select the rows of other engines that this one finishes.

        Args:
            inputs: of the finishing call: the rows of all engines that hand theirs over.
        """
        rows = inputs.index.rows
        loads = [int(self._running_rows[engine]) for engine in self._finishing]
        own = rows[assign_rows(len(rows), loads) == inputs.at.data]
        columns, index = inputs.load(own), inputs.index.find(own)
        lengths = columns["prompt_tokens"].lengths
        assert lengths is not None
        return Prompts(ShardIndex(index.rows, index.groups, lengths), columns)

    def resume(self, migrated: Prompts, sampling: Sampling, max_tokens: int) -> None:
        """Continue rows of other engines on this one."""
        generated = migrated.columns["response_tokens"]
        assert generated.lengths is not None
        pairs = zip(migrated.columns["prompt_tokens"].runs(), generated.runs(), strict=True)
        prompts = pack([np.concatenate(pair) for pair in pairs], np.int32)
        # The generated tokens are part of the new prompt, and count towards the response's limit.
        remaining = [max_tokens - length for length in generated.lengths.tolist()]
        self.responses.add(
            prompts,
            sampling,
            remaining,
            num_generated=generated.lengths.tolist(),
            keeps_prefixes=True,
        )

    def finishing(self, migrated: Prompts) -> Prompts:
        """Return all rows that this engine finishes: those that it has kept come first."""
        assert self._kept is not None, "only finishing engines are called"
        return self._kept.then(migrated)

    def has_ended(self, migrated: Prompts) -> NDArray[np.bool_]:
        """Return which of these rows have ended."""
        return self.responses.has_ended[self._positions(migrated)]

    def generated(self, migrated: Prompts, rows: Rows | None = None) -> Generated:
        """Return the complete responses to some of these rows, by position; None: to all."""
        positions = self._positions(migrated)
        rows = np.arange(len(positions)) if rows is None else rows
        rest = self.responses.generated(positions[rows])
        tokens, log_probs = (
            _after_empty_runs(len(self._running), migrated.columns[name]).take(rows)
            for name in ("response_tokens", "rollout_log_probs")
        )
        return replace(
            rest,
            tokens=_append_runs(tokens, rest.tokens),
            log_probs=_append_runs(log_probs, rest.log_probs),
            kept_tokens=self._kept_tokens(migrated, rows, tokens, rest),
        )

    def _kept_tokens(
        self, migrated: Prompts, rows: Rows, earlier: Column, rest: Generated
    ) -> Column | None:
        """Return the encoded sets of complete responses.

        Args:
            migrated: rows of other engines.
            rows: positions of the rows among all that this engine finishes.
            earlier: tokens of the rows that other engines generated.
            rest: what this engine generated of the rows.
        """
        if rest.kept_tokens is None:
            return None
        sets = _after_empty_runs(len(self._running), migrated.columns[KEPT_TOKENS]).take(rows)
        assert earlier.lengths is not None and rest.tokens.lengths is not None
        return join_sets(sets, earlier.lengths, rest.kept_tokens, rest.tokens.lengths)

    def _positions(self, migrated: Prompts) -> Rows:
        """Return the positions of the rows among all responses of this engine."""
        count = len(self.responses.has_ended)
        # Migrated rows were added last.
        own = np.arange(count - len(migrated.index.rows), count)
        return np.concatenate([self._running, own])


def assign_rows(num_rows: int, loads: Sequence[int]) -> np.ndarray:
    """Assign rows to engines, one after the other, each to the engine with the fewest rows.

    Args:
        num_rows: rows to assign.
        loads: rows that each engine has already.

    Returns:
        int64[rows], the engine of each row.
    """
    # Ties go to the engine with the lower number, so that all ranks assign alike.
    heap = [(load, engine) for engine, load in enumerate(loads)]
    heapq.heapify(heap)
    owners = np.zeros(num_rows, dtype=np.int64)
    for row in range(num_rows):
        load, owners[row] = heap[0]
        heapq.heapreplace(heap, (load + 1, int(owners[row])))
    return owners


def _finishing_engines(plan: Plan, role: str, mesh: Mesh) -> tuple[int, ...]:
    """Return the numbers of the finishing engines among all of the role's."""
    finish = next(
        call.mesh
        for call in plan.calls
        if (call.graph, call.kind, call.role) == (GraphName.STEP, CallKind.FINISH, role)
    )
    assert finish is not None
    # The mesh of the finishing call has the first rank of each of its engines at (tensor 0,
    # pipeline 0); the role's mesh gives the engine's number.
    firsts = [finish.rank_at(number, 0, 0) for number in range(finish.data)]
    return tuple(Coordinates.in_mesh(rank, mesh).data for rank in firsts)


def _unfinished_shard(prompts: Prompts, generated: Generated) -> Shard:
    return Shard(
        prompts.index,
        # Texts are decoded when the response is complete.
        {
            **prompts.columns,
            **response_columns(generated, [""] * len(prompts.index.rows), TRAIN_ON_ALL),
        },
    )


def _after_empty_runs(number: int, column: Column) -> Column:
    assert column.lengths is not None
    return Column(column.values, np.concatenate([np.zeros(number, np.int32), column.lengths]))


def _append_runs(first: Column, rest: Column) -> Column:
    pairs = zip(first.runs(), rest.runs(), strict=True)
    return pack([np.concatenate(pair) for pair in pairs], first.values.dtype.type)
