"""Passes of training and inference by tokens and pairs, and the optimizer's step by parameters."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from rlhf_api.spec.models import LearningRateDecay
from rlhf_planner.problem.profile import Curve, PassCurves, TrainingCurves, block_curves, curve_of
from rlhf_runtime.dataplane.columns import pack
from rlhf_runtime.engines.optimizer import Optimizer
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, Packing, pack_micro_batches
from rlhf_runtime.profiling.timed_model import Clock, Parts, TimedModel
from rlhf_sizing.costs import SequenceCost

T = TypeVar("T")

SETTINGS = OptimizerSettings(1e-6, 0.9, 0.95, 1e-8, 0.0, 1.0, LearningRateDecay.NONE, 0, 1_000_000)
"""Any: they do not change what a step takes."""
SHORT, FEWEST = 32, 16
"""Tokens of a sequence where its length does not matter, and of the smallest pass."""
COMPARED = 1024
"""Tokens with which lengths are compared."""
REPEATS, SECONDS = 3, 0.25
"""Each point is measured so often, and for so long, whichever is more; but only once more where
it takes longer than `LONG`."""
LONG = 0.5


class Point(NamedTuple):
    """A micro-batch of equal sequences."""

    sequences: int
    length: int

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.sequences * self.length

    @property
    def pairs(self) -> float:
        """Of tokens of which one looks at the other."""
        return self.tokens * self.length / 2

    @property
    def predicted(self) -> int:
        """Tokens of responses: half of each sequence."""
        return self.sequences * (self.length // 2)


class Sample(NamedTuple):
    """What was measured at a point."""

    at: Point
    forward: Parts
    beyond: Parts
    """What training takes more."""


def points(most_tokens: int, longest: int) -> list[Point]:
    """Micro-batches to measure: every fourth power of tokens, of short sequences; and one number of
    tokens in longer sequences.

    Args:
        most_tokens: of a pass.
        longest: sequence that the model takes.
    """
    lengths = _lengths(longest)
    shortest = lengths[0]
    sizes = [FEWEST]
    while sizes[-1] < most_tokens:
        sizes.append(min(4 * sizes[-1], most_tokens))
    if len(sizes) > 2 and sizes[-1] < 2 * sizes[-2]:
        del sizes[-2]
    short = [Point(max(1, size // shortest), min(size, shortest)) for size in sizes]
    return list(dict.fromkeys([*short, *(Point(COMPARED // n, n) for n in lengths)]))


def _lengths(longest: int) -> list[int]:
    """Of sequences that are compared, rising: powers of two, so that they make up equally many
    tokens; two of them at least, where the model takes more than one token."""
    found = [length for length in (SHORT, 128, 512, COMPARED) if length <= longest]
    if len(found) > 1:
        return found
    largest = 1 << (min(longest, COMPARED).bit_length() - 1)
    return sorted({max(1, min(SHORT, largest // 4)), largest})


def micro_batch(at: Point, vocab_size: int, hidden_size: int) -> MicroBatch:
    """Random prompts with responses of their length."""
    random = np.random.default_rng(at.tokens)
    halves = [
        pack([random.integers(0, vocab_size, size) for _ in range(at.sequences)], np.int32)
        for size in (at.length - at.length // 2, at.length // 2)
    ]
    groups = np.arange(at.sequences, dtype=np.int64)
    prompts, responses = halves
    (part,) = pack_micro_batches(
        prompts, responses, groups, Packing(at.tokens, SequenceCost(hidden_size), False)
    )
    return part


def measure_training(
    folder: Path,
    clock: Clock,
    device: torch.device,
    dtype: torch.dtype,
    most_tokens: int,
    begin: Callable[[str], None],
) -> TrainingCurves:
    """Curves of the layers of a model.

    Args:
        folder: with the config of the layers that are measured.
        clock: of the device.
        device: on which.
        dtype: in which they compute.
        most_tokens: of a pass.
        begin: is told what is measured, before it is; returns when all ranks are there.
    """
    model = TimedModel(folder, clock, device, dtype)
    config = model.module.config
    asked = points(most_tokens, getattr(config, "max_position_embeddings", None) or COMPARED)
    kept = _samples(model, asked, begin)
    begin("the optimizer")
    optimizer, num_layers = measure_optimizer(model), len(model.blocks())
    del model
    _free(device)  # the next one is as large
    again = _samples(TimedModel(folder, clock, device, dtype, recompute=True), fewer(asked), begin)
    return TrainingCurves(
        forward=_curves(((each.at, each.forward) for each in kept), num_layers),
        backward=_curves(((each.at, each.beyond) for each in kept), num_layers),
        recomputed=_curves(((each.at, each.beyond) for each in again), num_layers),
        optimizer=optimizer,
    )


def _free(device: torch.device) -> None:
    """Give the memory of models back that nobody uses: their hooks refer to them in circles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def fewer(asked: Sequence[Point]) -> list[Point]:
    """Of these points the least, the largest and, in between, every second; the shortest and the
    longest of the sequences that are compared."""
    compared = sorted((each for each in asked if each.tokens == COMPARED), key=lambda at: at.length)
    short = [each for each in asked if each.length <= compared[0].length]
    return list(dict.fromkeys([*short[::-2], short[0], compared[0], compared[-1]]))


def _samples(
    model: TimedModel, asked: Iterable[Point], begin: Callable[[str], None]
) -> list[Sample]:
    config = model.module.config
    found = []
    for at in asked:
        part = micro_batch(at, config.vocab_size, config.hidden_size)
        text = f"passes of {at.sequences} x {at.length} tokens"
        begin(f"forward {text}")
        forward = min(repeated(partial(model.infer, part)), key=lambda parts: parts.total)
        begin(f"training {text}")
        best = min(repeated(partial(model.train, part)), key=lambda both: sum(map(sum, both)))
        more = (there + back - alone for there, back, alone in zip(*best, forward, strict=True))
        found.append(Sample(at, forward, Parts(*(max(0.0, each) for each in more))))
    return found


def repeated(measure: Callable[[], T]) -> list[T]:
    """What a measurement says again and again. The first time takes memory, and only counts where
    it takes long."""
    begin = time.perf_counter()
    first = measure()
    if (seconds := time.perf_counter() - begin) > LONG:
        return [first, measure()] if seconds < 4 * LONG else [first]
    found: list[T] = []
    begin = time.perf_counter()
    while len(found) < REPEATS or time.perf_counter() - begin < SECONDS:
        found.append(measure())
    return found


def _curves(measured: Iterable[tuple[Point, Parts]], num_layers: int) -> PassCurves:
    rows = list(measured)
    return PassCurves(
        block=block_curves((at.tokens, at.pairs, parts.blocks / num_layers) for at, parts in rows),
        embedding=curve_of((at.tokens, parts.embedding) for at, parts in rows),
        head=curve_of((at.predicted, parts.head) for at, parts in rows),
    )


def measure_optimizer(model: TimedModel) -> Curve:
    """Clipping and a step, of a block's parameters and of all."""
    samples = []
    for module in (model.blocks()[0], model.module):
        optimizer = SteppedOptimizer(module, model.clock)
        samples.append((float(optimizer.num_parameters), min(repeated(optimizer.step))))
    return curve_of(samples)


class SteppedOptimizer:
    """An optimizer of parameters like those of a module, with gradients that stay the same."""

    def __init__(self, module: nn.Module, clock: Clock) -> None:
        self._stepped = {
            name: nn.Parameter(torch.zeros_like(each, dtype=torch.float32))
            for name, each in module.named_parameters()
        }
        self._gradients = [torch.full_like(each, 1e-3) for each in self._stepped.values()]
        self._optimizer = Optimizer(self._stepped, SETTINGS)
        self._clock = clock

    @property
    def num_parameters(self) -> int:
        """That are stepped."""
        return sum(each.numel() for each in self._stepped.values())

    def step(self) -> float:
        """Seconds of clipping and one step."""
        for parameter, gradient in zip(self._stepped.values(), self._gradients, strict=True):
            parameter.grad = gradient
        self._clock.mark()
        self._optimizer.step()
        self._clock.mark()
        return self._clock.read()[0]
