"""A few layers of a model as FSDP's engine builds them, with random weights, and the time at the
ends of its blocks in passes forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rlhf_runtime.engines.fsdp.head import FsdpHead
from rlhf_runtime.engines.fsdp.loading import recompute_blocks
from rlhf_runtime.engines.model_files import read_config
from rlhf_runtime.engines.packing import MicroBatch, empty_micro_batch
from rlhf_runtime.engines.training import ReadLogProbs

Now = Callable[[], float]
"""Seconds since some moment."""


class Parts(NamedTuple):
    """Seconds of a pass."""

    embedding: float
    """And whatever else is before the first block."""
    blocks: float
    """All of them."""
    head: float
    """And the last norm."""

    @property
    def total(self) -> float:
        """Of the whole pass."""
        return sum(self)


class Clock:
    """Points in time of what a device computes."""

    def __init__(self, device: torch.device, now: Now = time.perf_counter) -> None:
        """Begin without points.

        Args:
            device: that computes.
            now: seconds of a CPU; a GPU has its own.
        """
        self._device, self._now = device, now
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Now; on a GPU when it has come here."""
        if self._device.type == "cpu":
            self._marks.append(self._now())
        else:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)

    def read(self) -> list[float]:
        """Seconds between points, which are forgotten."""
        marks, self._marks = self._marks, []
        if self._device.type == "cpu":
            return [end - begin for begin, end in zip(marks, marks[1:], strict=False)]
        torch.cuda.synchronize(self._device)
        pairs = zip(marks, marks[1:], strict=False)
        return [begin.elapsed_time(end) / 1000 for begin, end in pairs]


class TimedModel:
    """Runs micro-batches through a model as training does."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        device: torch.device,
        dtype: torch.dtype,
        *,
        recompute: bool = False,
    ) -> None:
        """Build it.

        Args:
            folder: with its config.
            clock: of the device.
            device: on which it computes.
            dtype: in which it does.
            recompute: whether activations are computed again.
        """
        config = read_config(folder)
        config.use_cache = False
        with torch.device(device):
            self.module = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="sdpa"
            )
        self.module.eval()
        if recompute:
            recompute_blocks(self.module)
        self.clock = clock
        self._device = device
        self._head = FsdpHead(self.module)
        self._head.detect_changed_logits(empty_micro_batch().to(device))
        self._is_watched = self._has_gradients = False
        blocks = self.blocks()
        blocks[0].register_forward_pre_hook(self._enter_blocks, with_kwargs=True)
        blocks[-1].register_forward_hook(self._leave_blocks)

    def blocks(self) -> list[nn.Module]:
        """Its blocks."""
        kinds = set(self.module._no_split_modules or ())
        return [each for each in self.module.modules() if type(each).__name__ in kinds]

    @torch.no_grad()
    def infer(self, part: MicroBatch) -> Parts:
        """A forward pass without gradients."""
        self._run(part)
        return Parts(*self.clock.read())

    def train(self, part: MicroBatch) -> tuple[Parts, Parts]:
        """A forward and a backward pass; gradients are kept nowhere."""
        self.module.zero_grad(set_to_none=True)
        self._has_gradients = True
        loss = self._run(part)
        torch.autograd.backward(loss)
        self.clock.mark()
        self._has_gradients = False
        embedding, blocks, head, *backward = self.clock.read()
        return Parts(embedding, blocks, head), Parts(*reversed(backward))

    def _run(self, part: MicroBatch) -> Tensor:
        part = part.to(self._device)
        self._is_watched = True
        self.clock.mark()
        values = self._head.run(part, ReadLogProbs()).values
        loss = values.mean()
        self.clock.mark()
        self._is_watched = False
        return loss

    def _enter_blocks(self, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._note(given[0] if given else named["hidden_states"])

    def _leave_blocks(self, _: nn.Module, __: tuple[Any, ...], found: Any) -> None:
        self._note(found if isinstance(found, Tensor) else found[0])

    def _note(self, hidden: Tensor) -> None:
        """Mark the time when hidden states are there, and when their gradient is."""
        if not self._is_watched:  # computed again
            return
        self.clock.mark()
        if self._has_gradients:
            hidden.register_hook(lambda _: self.clock.mark())  # type: ignore[no-untyped-call]
