"""Which responses share their prompt, by hand and against doing so never."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.spec.models import BuiltinModel
from rlhf_planner.problem.model_shapes import BUILTIN_MODELS
from rlhf_runtime.dataplane.columns import pack
from rlhf_runtime.engines.packing import Packing, group_into_sequences, pack_micro_batches
from rlhf_runtime.engines.sharing import sequence_cost, width_of
from rlhf_sizing.costs import SequenceCost, attention_width

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


def test_the_width_counts_the_models_own_operations() -> None:
    """The hidden size, if a block has 12 h^2 weights; of Llama 3 8B half as much again."""
    gpt = attention_width(1024, 8 * 1024 // 3, 1024, 1024)
    assert gpt == pytest.approx(1024, rel=1e-3)
    config = SimpleNamespace(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8
    )
    weights = 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336
    assert width_of(config) == pytest.approx(weights / (12 * 4096))


def test_engines_and_the_planner_count_alike() -> None:
    shape = BUILTIN_MODELS[BuiltinModel.TINY_LLAMA]
    config = SimpleNamespace(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
    )
    expected = attention_width(
        shape.hidden_size, shape.intermediate_size, shape.query_size, shape.key_value_size
    )
    assert width_of(config) == expected


def test_only_equal_prompts_of_a_group_are_shared() -> None:
    # An environment's observations differ between the conversations of one prompt.
    first, other, nearly = np.arange(1000), np.arange(900), np.arange(1000)
    nearly[-1] = 7
    texts = [first, other, nearly, first, other]
    prompts = pack(texts, np.int32)
    responses = pack([np.full(50, 2000 + row) for row in range(len(texts))], np.int32)
    groups = np.array([1, 1, 1, 1, 0])
    packing = Packing(10**6, CPU, share_prompts=True)
    (part,) = pack_micro_batches(prompts, responses, groups, packing, keep_groups=True)
    assert part.rows.tolist() == [4, 0, 3, 1, 2], "groups stay together, and the first is shared"
    assert len(part.token_ids) == 4
    for sequence, row in zip(part.token_ids.numpy(), (4, 0, 1, 2), strict=True):
        assert sequence[: len(texts[row])].tolist() == texts[row].tolist()
