"""What is sampled, and what is counted of responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from rlhf_api.plan import GraphName
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.roles.generation import Generation, num_empty, sample_numbers


def seeds_of(graph: GraphName, call: str, step: int = 1, round: int = 0) -> Any:
    """Of two samples of one prompt."""
    generation = Generation.__new__(Generation)
    schedule = SimpleNamespace(seed=7)
    job = SimpleNamespace(spec=SimpleNamespace(schedule=schedule))
    generation._context = SimpleNamespace(job=job)  # type: ignore[assignment]
    call_of: Any = SimpleNamespace(id=call)
    inputs: Any = SimpleNamespace(graph=graph, call=call_of, step=step, round=round)
    prompts = {"prompt_id": Column(np.array([5, 5]))}
    return tuple(generation._sampling(prompts, np.array([0, 1]), inputs, 1.0).seeds)


def test_every_call_of_every_graph_and_step_samples_anew() -> None:
    first = seeds_of(GraphName.STEP, "actor.generate")
    assert first == seeds_of(GraphName.STEP, "actor.generate") and first[0] != first[1]
    others = (
        seeds_of(GraphName.STEP, "actor.generate#2"),
        seeds_of(GraphName.EVALUATION, "actor.generate"),
        seeds_of(GraphName.STEP, "actor.generate", step=2),
        seeds_of(GraphName.STEP, "actor.generate", round=1),
    )
    assert len({*first, *(seed for seeds in others for seed in seeds)}) == 10


def test_blank_responses_are_empty() -> None:
    assert num_empty(["", " \n\t", "7", " 7 "]) == 2


def test_samples_are_numbered_over_all_rows_of_a_prompt() -> None:
    """Three prompts, of which the second and the third were answered before."""
    groups = np.array([4, 9, 9, 2, 2])
    assert sample_numbers(groups, 2).tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 2, 3]
    assert sample_numbers(groups[1:3], 2).tolist() == [0, 1, 2, 3], "on the rank that has them"
