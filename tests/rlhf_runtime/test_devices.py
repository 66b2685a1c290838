"""How tensors come to the device that computes."""

from __future__ import annotations

from dataclasses import fields
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch

from rlhf_runtime.dataplane.columns import pack
from rlhf_runtime.devices import to_device
from rlhf_runtime.engines.packing import MicroBatch, Packing, empty_micro_batch, pack_micro_batches
from rlhf_sizing.costs import SequenceCost

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def micro_batch() -> MicroBatch:
    """Of three rows, of which two share their prompt."""
    prompts = pack([[1, 2, 3], [1, 2, 3], [4]], np.int32)
    responses = pack([[5], [6, 7], [8, 9]], np.int32)
    (made,) = pack_micro_batches(
        prompts, responses, np.array([0, 0, 1]), Packing(100, SequenceCost(8), True)
    )
    return made


def test_on_a_cpu_nothing_is_copied() -> None:
    tensor = torch.arange(6)[::2]
    assert to_device(tensor, CPU) is tensor
    made = micro_batch()
    assert made.to(CPU) is made
    assert to_device(tensor, torch.device("meta")).device.type == "meta"


def test_to_a_gpu_it_goes_through_pinned_memory_and_nobody_waits() -> None:
    tensor = Mock(spec=torch.Tensor, device=CPU)
    moved = to_device(tensor, GPU)
    assert moved is tensor.pin_memory.return_value.to.return_value
    assert tensor.mock_calls == [call.pin_memory(), call.pin_memory().to(GPU, non_blocking=True)]
    there = Mock(spec=torch.Tensor, device=GPU)
    to_device(there, GPU)
    assert there.mock_calls == [call.to(GPU)]


@pytest.mark.parametrize("made", [micro_batch(), empty_micro_batch()])
def test_all_of_a_micro_batch_does(monkeypatch: pytest.MonkeyPatch, made: MicroBatch) -> None:
    asked: list[torch.Tensor] = []

    def note(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert device is GPU
        asked.append(tensor)
        return tensor.clone()

    monkeypatch.setattr("rlhf_runtime.engines.packing.to_device", note)
    moved = made.to(GPU)
    for field in fields(made):
        before, after = getattr(made, field.name), getattr(moved, field.name)
        assert (before is None) == (after is None)
        assert before is None or (after is not before and torch.equal(before, after))
    assert len(asked) == sum(getattr(made, field.name) is not None for field in fields(made))
