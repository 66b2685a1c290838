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
from dataclasses import dataclass

import numpy as np
import torch

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.dataplane.columns import Column, Rows, concatenate, pack, pack_texts
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.engines.parallel import RankGroup
from rlhf_runtime.engines.response_batch import Generated, ResponseBatch, Sampling


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
        self.responses.add(prompts, sampling, remaining, keeps_prefixes=True)

    def generated(self, migrated: Prompts) -> tuple[Prompts, Generated]:
        """Return all rows that this engine has finished, with their complete responses."""
        assert self._kept is not None, "only finishing engines are called"
        count = len(self.responses.has_ended)
        kept = self.responses.generated(self._running)
        # Migrated rows were added last.
        rest = self.responses.generated(np.arange(count - len(migrated.index.rows), count))
        tokens, log_probs = (
            migrated.columns[name] for name in ("response_tokens", "rollout_log_probs")
        )
        return self._kept.then(migrated), Generated(
            concatenate([kept.tokens, _append_runs(tokens, rest.tokens)]),
            concatenate([kept.log_probs, _append_runs(log_probs, rest.log_probs)]),
            np.concatenate([kept.finished, rest.finished]),
        )


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
        {
            **prompts.columns,
            "response_tokens": generated.tokens,
            "rollout_log_probs": generated.log_probs,
            "finished": Column(generated.finished),
            # Texts are decoded when the response is complete.
            "response_text": pack_texts([""] * len(prompts.index.rows)),
        },
    )


def _append_runs(first: Column, rest: Column) -> Column:
    pairs = zip(first.runs(), rest.runs(), strict=True)
    return pack([np.concatenate(pair) for pair in pairs], first.values.dtype.type)
