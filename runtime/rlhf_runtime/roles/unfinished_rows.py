"""Responses that some engines leave to others to finish: when, which, and to whom.

All engines look together, every few steps, at how many are left, so that the same rows are left
whenever the step is run again, however fast each engine was. Rows of an engine that finishes go on
where they are; those of the others are prefilled anew, prompt and tokens so far, by an engine with
fewest rows.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Mesh, Plan
from rlhf_runtime.dataplane.columns import Column, Rows, concatenate, pack, pack_texts
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.engines.parallel import RankGroup
from rlhf_runtime.engines.vllm.requests import Generated, Requests, Sampling
from rlhf_runtime.workers.inputs import Inputs


@dataclass(frozen=True)
class Prompts:
    """Rows that are answered."""

    index: ShardIndex
    """Lengths are of the prompts alone."""
    columns: Mapping[str, Column]
    """What is known of them before they are."""

    def take(self, positions: Rows) -> Prompts:
        """Some of them."""
        columns = {name: column.take(positions) for name, column in self.columns.items()}
        return Prompts(self.index.take(positions), columns)

    def then(self, other: Prompts) -> Prompts:
        """These, then others, with the columns of these."""
        one, two = self.index, other.index
        return Prompts(
            ShardIndex(
                np.concatenate([one.rows, two.rows]),
                np.concatenate([one.groups, two.groups]),
                np.concatenate([one.lengths, two.lengths]),
            ),
            {
                name: concatenate([column, other.columns[name]])
                for name, column in self.columns.items()
            },
        )


class UnfinishedRows:
    """What an engine does about the rows that are left in a step."""

    def __init__(self, plan: Plan, role: str, engines: RankGroup, at: Coordinates) -> None:
        """
        Args:
            plan: of the job.
            role: that generates.
            engines: the ranks of all of its engines.
            at: this rank's place among them.
        """
        generation = plan.generation(role)
        assert generation is not None and generation.fusion is not None
        self._threshold = generation.fusion.threshold_rows
        self._engines, self._at = engines, at
        self._finishing = _finishing_engines(plan, role, generation.mesh)
        self._left = np.zeros(at.data_size, dtype=np.int64)
        self._kept: Prompts | None = None

    def are_few(self, num_running: int) -> bool:
        """Whether so few rows are left over all engines that some engines take them all.
        Collective.

        Args:
            num_running: of this engine.
        """
        left = torch.zeros(self._at.data_size, dtype=torch.int64)
        left[self._at.data] = num_running if self._at.tensor == 0 else 0
        self._left = self._engines.sum(left).numpy()
        return int(self._left.sum()) <= self._threshold

    def leave(
        self, prompts: Prompts, requests: Requests, running: Rows, temperature: float
    ) -> Shard:
        """What is left of this engine's rows to others: nothing, if it finishes them itself.

        Args:
            prompts: of the rows that are left.
            requests: of all rows.
            running: which of these are left.
            temperature: at which they are sampled.
        """
        self.temperature, self.requests = temperature, requests
        keeps = self._at.data in self._finishing
        self._running = running
        if keeps:
            self._kept, prompts, running = prompts, prompts.take(running[:0]), running[:0]
        else:
            requests.abort()
        return _left_shard(prompts, requests.generated(running))

    def share_of(self, inputs: Inputs) -> Prompts:
        """The rows of other engines that this one finishes.

        Args:
            inputs: of the call that finishes, with the rows of all engines that do not.
        """
        rows = inputs.index.rows
        loads = [int(self._left[engine]) for engine in self._finishing]
        own = rows[deal(len(rows), loads) == inputs.at.data]
        columns, index = inputs.load(own), inputs.index.find(own)
        lengths = columns["prompt_tokens"].lengths
        assert lengths is not None
        return Prompts(ShardIndex(index.rows, index.groups, lengths), columns)

    def take_over(self, taken: Prompts, sampling: Sampling, max_tokens: int) -> None:
        """Let rows of other engines go on here."""
        so_far = taken.columns["response_tokens"]
        assert so_far.lengths is not None
        begun = zip(taken.columns["prompt_tokens"].runs(), so_far.runs(), strict=True)
        prompts = pack([np.concatenate(pair) for pair in begun], np.int32)
        most = [max_tokens - length for length in so_far.lengths.tolist()]
        self.requests.add(prompts, sampling, most)

    def generated(self, taken: Prompts) -> tuple[Prompts, Generated]:
        """All rows that were left to this engine, with their whole responses."""
        assert self._kept is not None, "only engines that finish rows are asked to"
        count = len(self.requests.has_ended)
        kept = self.requests.generated(self._running)
        rest = self.requests.generated(np.arange(count - len(taken.index.rows), count))
        return self._kept.then(taken), Generated(
            concatenate([kept.tokens, _joined(taken.columns["response_tokens"], rest.tokens)]),
            concatenate(
                [kept.log_probs, _joined(taken.columns["rollout_log_probs"], rest.log_probs)]
            ),
            np.concatenate([kept.finished, rest.finished]),
        )


def deal(num_rows: int, loads: Sequence[int]) -> np.ndarray:
    """int64[rows]: the engine of each row: one after the other goes to that with fewest.

    Args:
        num_rows: to deal.
        loads: rows that each engine has.
    """
    heap = [(load, engine) for engine, load in enumerate(loads)]
    heapq.heapify(heap)
    owners = np.zeros(num_rows, dtype=np.int64)
    for row in range(num_rows):
        load, owners[row] = heap[0]
        heapq.heapreplace(heap, (load + 1, int(owners[row])))
    return owners


def _finishing_engines(plan: Plan, role: str, mesh: Mesh) -> tuple[int, ...]:
    """The numbers of the engines that finish, among all of the role's."""
    finish = next(
        call.mesh
        for call in plan.calls
        if (call.graph, call.kind, call.role) == (GraphName.STEP, CallKind.FINISH, role)
    )
    assert finish is not None
    firsts = [finish.rank_at(number, 0, 0) for number in range(finish.data)]
    return tuple(Coordinates.of(rank, mesh).data for rank in firsts)


def _left_shard(prompts: Prompts, generated: Generated) -> Shard:
    return Shard(
        prompts.index,
        {
            **prompts.columns,
            "response_tokens": generated.tokens,
            "rollout_log_probs": generated.log_probs,
            "finished": Column(generated.finished),
            "response_text": pack_texts([""] * len(prompts.index.rows)),
        },
    )


def _joined(begun: Column, rest: Column) -> Column:
    """Of each row what was there, then what came."""
    pairs = zip(begun.runs(), rest.runs(), strict=True)
    return pack([np.concatenate(pair) for pair in pairs], begun.values.dtype.type)
