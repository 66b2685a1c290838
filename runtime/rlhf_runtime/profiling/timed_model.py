"""TimedModel: a few layers as the FSDP engine builds them, with random weights and timed blocks."""

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

# Seconds since a fixed moment.
Now = Callable[[], float]


class Parts(NamedTuple):
    """Seconds of a pass, by part."""

    embedding: float
    """Everything before the first block."""
    blocks: float
    head: float
    """Includes the last norm."""

    @property
    def total(self) -> float:
        """Seconds of the complete pass."""
        return sum(self)


class Clock:
    """Marks points in time of a device's work."""

    def __init__(self, device: torch.device, now: Now = time.perf_counter) -> None:
        """Start without marks.

        Args:
            device: that computes.
            now: clock of a CPU; GPUs use events.
        """
        self._device, self._now = device, now
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Mark this point of the device's work."""
        if self._device.type == "cpu":
            self._marks.append(self._now())
        else:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)

    def read(self) -> list[float]:
        """Seconds between marks; deletes them."""
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
        """Build the model.

        Args:
            folder: with its config.
            clock: of the device.
            device: of the model.
            dtype: of the model.
            recompute: True to recompute activations.
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
        self._is_timed = self._has_gradients = False
        blocks = self.blocks()
        blocks[0].register_forward_pre_hook(self._enter_blocks, with_kwargs=True)
        blocks[-1].register_forward_hook(self._leave_blocks)

    def blocks(self) -> list[nn.Module]:
        """The transformer blocks."""
        kinds = set(self.module._no_split_modules or ())
        return [module for module in self.module.modules() if type(module).__name__ in kinds]

    @torch.no_grad()
    def infer(self, part: MicroBatch) -> Parts:
        """A forward pass without gradients."""
        self._run(part)
        return Parts(*self.clock.read())

    def train(self, part: MicroBatch) -> tuple[Parts, Parts]:
        """A forward and a backward pass; gradients are dropped."""
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
        self._is_timed = True
        self.clock.mark()
        values = self._head.run(part, ReadLogProbs()).values
        loss = values.mean()
        self.clock.mark()
        self._is_timed = False
        return loss

    def _enter_blocks(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._mark_hidden(args[0] if args else kwargs["hidden_states"])

    def _leave_blocks(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        self._mark_hidden(output if isinstance(output, Tensor) else output[0])

    def _mark_hidden(self, hidden: Tensor) -> None:
        """Mark the time when hidden states are computed, and when their gradient is."""
        if not self._is_timed:  # a recomputed block
            return
        self.clock.mark()
        if self._has_gradients:
            hidden.register_hook(lambda _: self.clock.mark())  # type: ignore[no-untyped-call]
