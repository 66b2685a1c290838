"""Which responses share their prompt, by hand and against doing so never."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.engines.packing import group_into_sequences
from rlhf_runtime.engines.sharing import sequence_cost
from rlhf_sizing.costs import SequenceCost

CPU, GPU = (sequence_cost(1024, torch.device(kind)) for kind in ("cpu", "cuda"))


def sequences(
    prompts: list[int], responses: list[int], cost: SequenceCost, max_tokens: int = 10**6
) -> list[list[int]]:
    """Of one prompt for each length, with as many responses to each."""
    groups = np.repeat(np.arange(len(prompts)), len(responses) // len(prompts))
    found = group_into_sequences(
        np.arange(len(responses)),
        np.array(prompts, dtype=np.int32)[groups],
        np.array(responses, dtype=np.int32),
        groups,
        cost,
        max_tokens,
    )
    return [rows.tolist() for rows in found]


TOGETHER, APART = [[0, 1]], [[0], [1]]


@pytest.mark.parametrize(
    ("prompt", "response", "on_cpu", "on_gpu"),
    [
        (1000, 50, TOGETHER, TOGETHER),  # 1297 or 1494, alone 2279
        (400, 600, TOGETHER, APART),  # 2017 or 2433, alone 2163
        (300, 700, APART, APART),  # 2170 or 2641, alone 2163: the mask of the first costs 81, too
        (50, 950, APART, APART),
    ],
)
def test_two_responses_share_where_the_mask_costs_less_than_the_prompt(
    prompt: int, response: int, on_cpu: list[list[int]], on_gpu: list[list[int]]
) -> None:
    assert sequences([prompt], [response] * 2, CPU) == on_cpu
    assert sequences([prompt], [response] * 2, GPU) == on_gpu


def test_sequences_of_several_responses_have_a_bound() -> None:
    assert sequences([1000], [50] * 4, CPU, 1100) == [[0, 1], [2, 3]]


LENGTHS = st.integers(1, 3000)


@given(st.lists(LENGTHS, min_size=1, max_size=3), st.integers(1, 6), st.data())
def test_sharing_never_costs_more_than_not_to(
    prompts: list[int], responses_per_prompt: int, data: st.DataObject
) -> None:
    number = len(prompts) * responses_per_prompt
    responses = data.draw(st.lists(LENGTHS, min_size=number, max_size=number))
    cost = data.draw(st.sampled_from([CPU, GPU]))
    found = sequences(prompts, responses, cost)
    assert sorted(row for rows in found for row in rows) == list(range(number))
    for rows in found:
        (prompt,) = {prompts[row // responses_per_prompt] for row in rows}
        tokens = prompt + sum(responses[row] for row in rows)
        alone = sum(cost.alone(prompt + responses[row]) for row in rows)
        assert len(rows) == 1 or cost.shared(tokens) < alone
