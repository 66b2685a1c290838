"""Passes under a clock that is told what to say."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.profiling import training
from rlhf_runtime.profiling.timed_model import Clock, Parts, TimedModel
from rlhf_runtime.profiling.training import Point, measure_training, micro_batch

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_folder(0, tmp_path_factory.mktemp("model"))


def clock_of(times: Iterator[int]) -> Clock:
    return Clock(CPU, lambda: float(next(times)))


@pytest.mark.parametrize("recompute", [False, True])
def test_parts_of_a_pass_are_between_its_marks(folder: Path, recompute: bool) -> None:
    """Forward 1, 2 and 4 seconds from the embedding to the head, back 8, 16 and 32."""
    model = TimedModel(folder, clock_of(iter([])), CPU, torch.float32, recompute=recompute)
    config = model.module.config
    part = micro_batch(Point(2, 8), config.vocab_size)
    model.clock = clock_of(iter([0, 1, 3, 7]))
    assert model.infer(part) == Parts(1, 2, 4)
    model.clock = clock_of(iter([0, 1, 3, 7, 15, 31, 63]))
    assert model.train(part) == (Parts(1, 2, 4), Parts(32, 16, 8))


def test_what_training_takes_more_is_told_by_layer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every part of a pass takes 1 second, so each of n blocks 1 / n, forward and back; and of two
    models, of which only one recomputes, never more than one is there."""
    monkeypatch.setattr(training, "SECONDS", 0.0)
    built: list[weakref.ref[TimedModel]] = []

    class Counted(TimedModel):
        def __init__(self, *given: Any, **named: Any) -> None:
            assert all(each() is None for each in built)
            super().__init__(*given, **named)
            built.append(weakref.ref(self))
            num_layers.append(len(self.blocks()))

    num_layers: list[int] = []
    monkeypatch.setattr(training, "TimedModel", Counted)
    begun: list[str] = []
    found = measure_training(folder, clock_of(count()), CPU, torch.float32, 64, begun.append)
    assert len(built) == 2
    for passes in (found.forward, found.backward, found.recomputed):
        for tokens, pairs in [(16, 128), (64, 1024), (1024, 16384), (1024, 65536)]:
            assert passes.block(tokens, pairs) == pytest.approx(1 / num_layers[0])
        assert passes.embedding(500) == passes.head(500) == 1
    assert found.optimizer(1e5) == 1
    assert begun[:2] == ["forward passes of 1 x 16 tokens", "training passes of 1 x 16 tokens"]
