"""What an engine gives back and takes again, in any order that a plan may have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rlhf_runtime.engines.vllm.memory import DeviceMemory, EngineMemory, HostMemory

from ...depth import examples

WEIGHTS, CACHE = 4 * (3 * 5 + 5), 4 * 2 * 7
"""Bytes."""
RELEASE, RESTORE_WEIGHTS, RESTORE_CACHE = "release", "restore_weights", "restore_cache"


def may_come(order: list[str]) -> bool:
    """The cache comes back to generate: never before the weights."""
    awake = True
    for name in order:
        awake = name != RELEASE and (awake or name == RESTORE_WEIGHTS)
        if name == RESTORE_CACHE and not awake:
            return False
    return True


ORDERS = st.lists(st.sampled_from([RELEASE, RESTORE_WEIGHTS, RESTORE_CACHE]), max_size=8).filter(
    may_come
)
TWICE = [RELEASE, RESTORE_WEIGHTS, RELEASE, RESTORE_WEIGHTS, RESTORE_CACHE]


class SleepingCore:
    """vLLM's executor: what sleeps is left alone when it is put to sleep again, and what is awake
    is not woken."""

    def __init__(self) -> None:
        self.awake = {"weights": WEIGHTS, "kv_cache": CACHE}
        self._asleep: dict[str, int] = {}

    def sleep(self, level: int) -> None:
        assert level == 2 and "weights" in self.awake
        self._asleep |= self.awake
        self.awake = {}

    def wake_up(self, tags: list[str]) -> None:
        (tag,) = tags
        self.awake[tag] = self._asleep.pop(tag)


def follow(memory: EngineMemory, order: list[str]) -> tuple[int, int]:
    """Bytes of weights and cache after some calls, as they should be."""
    weights, cache = WEIGHTS, CACHE
    for name in order:
        getattr(memory, name)()
        match name:
            case "release":
                weights, cache = 0, 0
            case "restore_weights":
                weights = WEIGHTS
            case _:
                cache = CACHE
    return weights, cache


def on_host(order: list[str]) -> None:
    runner: Any = SimpleNamespace(model=nn.Linear(3, 5), kv_caches=[torch.ones(7), torch.ones(7)])
    memory = HostMemory(runner)
    expected = follow(memory, order)
    weights, cache = (
        sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        for tensors in (runner.model.parameters(), runner.kv_caches)
    )
    assert (weights, cache) == expected


def on_device(order: list[str]) -> None:
    core = SleepingCore()
    expected = follow(DeviceMemory(core), order)
    assert (core.awake.get("weights", 0), core.awake.get("kv_cache", 0)) == expected


@pytest.mark.parametrize("check", [on_host, on_device])
def test_what_is_released_again_before_all_came_back_comes_back_whole(check: Any) -> None:
    for end in range(len(TWICE) + 1):
        check(TWICE[:end])


@pytest.mark.parametrize("check", [on_host, on_device])
@given(order=ORDERS)
@settings(max_examples=examples(15))  # each collects garbage
def test_memory_is_there_as_the_last_calls_say(check: Any, order: list[str]) -> None:
    check(order)
