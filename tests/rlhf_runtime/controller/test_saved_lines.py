"""Lines that a step saves: whole and in order in the driver, whoever made them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan, GraphName
from rlhf_flow.step.calls import ModelCall, SaveOptions
from rlhf_flow.step.columns import LINES
from rlhf_runtime.controller.dispatch import StepBackend
from rlhf_runtime.controller.saved_lines import lines_by_name
from rlhf_runtime.hooks import noop

from .test_dispatch import backend_of, call_of, prompts

pytestmark = pytest.mark.ray

NUM_ROWS = 11


def written(first: int, stop: int) -> bytes:
    """The toy rank's lines of some rows: none of every third, two of the one after it."""
    by_row = {0: "", 1: "{row}, 1\n{row}, 2\n", 2: "{row}\n"}
    return "".join(by_row[row % 3].format(row=row) for row in range(first, stop)).encode()


def saving(name: str) -> ModelCall:
    options = SaveOptions(name)
    return ModelCall("save", None, "save", CallKind.SAVE, (LINES,), (), options=options)


def backend_with(workers: tuple[Any, ...]) -> StepBackend:
    """A step whose lines are made by these workers and saved."""
    backend = backend_of(actor=(workers, Mesh(pool="a", data=len(workers))))
    call = CallPlan(
        graph=GraphName.STEP,
        call="save",
        role=None,
        method="save",
        kind=CallKind.SAVE,
        mesh=None,
        reads=(LINES,),
        writes=(),
    )
    calls = (*backend.plan.calls, call)
    return replace(backend, plan=backend.plan.model_copy(update={"calls": calls}))


@pytest.mark.parametrize("count", [1, 3])
def test_lines_of_any_number_of_ranks_are_in_the_order_of_rows(
    workers: tuple[Any, ...], count: int
) -> None:
    backend = backend_with(workers[:count])
    batch = prompts(workers[0], NUM_ROWS)
    lines = backend.run(call_of("actor", "write"), batch)
    assert len(lines.columns[LINES].segments[0].shards) == count
    assert backend.run(saving("pairs"), lines).column_names == frozenset()
    assert len(backend.reports) == count, "saving is no order"
    backend.wait()
    assert lines_by_name(backend.saves, noop) == {"pairs": written(0, NUM_ROWS)}


def test_what_is_saved_under_one_name_is_one_file_also_of_joined_and_no_rows(
    workers: tuple[Any, ...],
) -> None:
    backend = backend_with(workers[:2])
    first = backend.run(call_of("actor", "write"), prompts(workers[0], 8))
    second = backend.run(call_of("actor", "write"), prompts(workers[0], 4))
    none = backend.run(call_of("actor", "write"), prompts(workers[0], 0))
    for name, batch in (
        *(("one", first.concat(second)), ("other", none), ("one", second)),
        ("renamed", first.rename(lines="texts").rename(texts="lines")),
    ):
        backend.run(saving(name), batch)
    assert lines_by_name(backend.saves, noop) == {
        "one": written(0, 8) + written(0, 4) * 2,
        "other": b"",
        "renamed": written(0, 8),
    }
