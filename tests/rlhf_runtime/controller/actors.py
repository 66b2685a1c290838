"""Actors without torch that stand for ranks: each call is one method, as in the roles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_flow.step.calls import ComputeOptions
from rlhf_flow.step.operations import Custom
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.reports import CallReport, ScoringReport, Statistics
from rlhf_runtime.calls.requests import CallRequest, returned_columns
from rlhf_runtime.dataplane.call_protocols import protocol_of
from rlhf_runtime.dataplane.columns import Column, pack, pack_texts
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.scores import Failure
from rlhf_runtime.workers.process import resident_bytes

from ...waiting import wait_until

Result = tuple[dict[str, Column], dict[str, float]]
"""Columns of this rank's rows, and sums for the driver."""

METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "double": (("tokens",), ("doubled",)),
    "widen": (("tokens",), ("wide",)),
    "write": (("tokens",), ("lines",)),
    "check": (("doubled", "tokens"), ()),
    "total": (("wide",), ()),
    "fail": (("tokens",), ("doubled",)),
    "meet": (("tokens",), ()),
    "sample": (("tokens",), ("sampled",)),
    "enough": (("sampled",), ("enough",)),
    "add": (("sampled",), ()),
    "answer": (("tokens",), ("answers",)),
    "score": (("answers",), ("scored",)),
}
"""What the methods of a ToyRank read and write."""


def start(count: int) -> tuple[Any, ...]:
    """Handles of so many ranks."""
    return tuple(ray.remote(ToyRank).options(num_cpus=0).remote() for _ in range(count))


class ToyRank:
    """Runs calls as a rank does, by methods of its own."""

    def __init__(self) -> None:
        self._places: dict[str, Coordinates] = {}

    def play(self, role: str, rank: int, mesh: Mesh) -> None:
        """Be a rank of a role from now on."""
        self._places[role] = Coordinates.in_mesh(rank, mesh)

    def prompts(self, num_rows: int) -> Shard:
        """A batch of so many rows: row i has i % 3 tokens i, and two rows are a group."""
        rows = np.arange(num_rows, dtype=np.int64)
        tokens = pack([[row] * (row % 3) for row in range(num_rows)], np.int32)
        return Shard(ShardIndex(rows, rows // 2, (rows % 3).astype(np.int32)), {"tokens": tokens})

    def batch(self, num_rows: int, number: int) -> tuple[bytes, Shard]:
        """A batch of prompts as the data host sends it: row i is 100 x number + i."""
        rows = np.arange(num_rows, dtype=np.int64)
        index = ShardIndex(rows, rows, np.ones(num_rows, dtype=np.int32))
        report = CallReport("data.batch", Statistics(), (), resident_bytes()).to_bytes()
        return report, Shard(index, {"tokens": Column(rows + 100 * number)})

    def run(self, header: bytes, own: bytes, *shards: Shard) -> tuple[bytes, Shard] | bytes:
        """One call, as `Rank.run`."""
        request = CallRequest.from_message(header, own)
        assert request.call.role is not None
        batch_slice = request.batch_slice  # a host is told which; a rank knows its place
        at = self._places.get(request.call.role) or Coordinates(
            batch_slice.index, batch_slice.count
        )
        inputs = CallInputs(request, shards, at)
        method: Callable[[CallInputs], Result] = getattr(self, request.call.method)
        columns, sums = method(inputs)
        statistics, scoring = Statistics(sums=sums), None
        if request.call.kind is CallKind.SCORE:
            failures = {"toy": (Failure(RewardFault.RAISED, "a response", "", "why"),)}
            rows, valid = int(sums["rows"]), int(sums["valid"])
            scoring = ScoringReport(request.round, rows, valid, {"toy": rows - valid}, failures)
        report = CallReport(request.call.id, statistics, (), resident_bytes(), scoring).to_bytes()
        names = returned_columns(request.call)
        if not names or not protocol_of(request.call).collect(at):
            return report
        made = {name: columns[name] for name in names}
        return report, Shard(inputs.index.find(inputs.rows()), made)

    def double(self, inputs: CallInputs) -> Result:
        """Every token twice as large."""
        tokens = inputs.load(inputs.rows())["tokens"]
        return {"doubled": Column(np.add(tokens.values, tokens.values), tokens.lengths)}, {}

    def write(self, inputs: CallInputs) -> Result:
        """Lines: none, two or one, as the row's number has it."""
        forms = ("", "{row}, 1\n{row}, 2", "{row}")
        rows = inputs.rows().tolist()
        return {"lines": pack_texts([forms[row % 3].format(row=row) for row in rows])}, {}

    def check(self, inputs: CallInputs) -> Result:
        """Count rows, and rows whose columns are not those of the row's number."""
        rows = inputs.rows()
        columns = inputs.load(rows)
        runs = zip(rows, columns["tokens"].runs(), columns["doubled"].runs(), strict=True)
        wrong = [
            row
            for row, tokens, doubled in runs
            if tokens.tolist() != [row] * (row % 3) or doubled.tolist() != [2 * row] * (row % 3)
        ]
        return {}, {"rows": float(len(rows)), "wrong": float(len(wrong))}

    def widen(self, inputs: CallInputs) -> Result:
        """As many bytes per row as asked for, filled with the row's number."""
        rows, options = inputs.rows(), inputs.call.options
        assert isinstance(options, ComputeOptions)
        (operation,) = options.operations
        assert isinstance(operation, Custom)
        row_bytes = operation.parameters["row_bytes"]
        assert isinstance(row_bytes, int)
        wide = np.empty((len(rows), row_bytes // 4), dtype=np.float32)
        wide[:] = rows[:, None]
        return {"wide": Column(wide)}, {}

    def total(self, inputs: CallInputs) -> Result:
        """Read the wide column."""
        values = inputs.load(inputs.rows())["wide"].values
        return {}, {"bytes": float(values.nbytes), "total": float(values[:, -1].sum())}

    def meet(self, inputs: CallInputs) -> Result:
        """End only when the other side has begun: calls that take turns would wait forever."""
        options = inputs.call.options
        assert isinstance(options, ComputeOptions)
        (operation,) = options.operations
        assert isinstance(operation, Custom)
        own, other = (Path(str(operation.parameters[name])) for name in ("own", "other"))
        own.touch()
        wait_until(other.exists, 60.0, f"{other.name} to begin")
        return {}, {"met": 1.0}

    def answer(self, inputs: CallInputs) -> Result:
        """On rank `last` end only when a file is there: what is begun after it would wait, too."""
        options = inputs.call.options
        assert isinstance(options, ComputeOptions)
        (operation,) = options.operations
        assert isinstance(operation, Custom)
        if inputs.at.data == operation.parameters["last"]:
            scoring = Path(str(operation.parameters["scored"]))
            wait_until(scoring.exists, 60.0, "another rank's answers to be scored")
        return {"answers": Column(inputs.rows())}, {}

    def score(self, inputs: CallInputs) -> Result:
        """Leave a file when it is over; without a name for it nothing can be scored."""
        options = inputs.call.options
        assert isinstance(options, ComputeOptions)
        (operation,) = options.operations
        assert isinstance(operation, Custom)
        answers = inputs.load(inputs.rows())["answers"]
        told, rows = str(operation.parameters["scored"]), float(answers.num_rows)
        if told:
            Path(told).touch()
        return {"scored": answers}, {"rows": rows, "valid": rows if told else 0.0}

    def sample(self, inputs: CallInputs) -> Result:
        """What a round makes of its prompts."""
        tokens = inputs.load(inputs.rows())["tokens"]
        return {"sampled": Column(tokens.values + 10_000 * inputs.round)}, {}

    def enough(self, inputs: CallInputs) -> Result:
        """Whether there are at least `rows` rows."""
        options = inputs.call.options
        assert isinstance(options, ComputeOptions)
        (operation,) = options.operations
        assert isinstance(operation, Custom)
        everything = inputs.load(inputs.index.rows)["sampled"]
        answer = everything.num_rows >= int(operation.parameters["rows"])
        return {"enough": Column(np.full(len(inputs.rows()), answer))}, {}

    def add(self, inputs: CallInputs) -> Result:
        """The sum of what was sampled, and the number of rows."""
        values = inputs.load(inputs.rows())["sampled"].values
        return {}, {"rows": float(len(values)), "total": float(values.sum())}

    def fail(self, inputs: CallInputs) -> Result:
        """Raise on rank 0; wait forever on the others, as in a collective that rank 0 left."""
        if inputs.at.rank == 0:
            raise ZeroDivisionError("rank 0 is lost")
        threading.Event().wait()
        return {}, {}
