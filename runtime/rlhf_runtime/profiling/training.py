"""Measures passes of training and inference, and the optimizer's step."""

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

# Arbitrary: they do not change the time of a step.
SETTINGS = OptimizerSettings(1e-6, LearningRateDecay.NONE, 0, 1_000_000, 0.9, 0.95, 1e-8, 0.0, 1.0)
# Tokens of a short sequence, and of the smallest pass.
SHORT, FEWEST = 32, 16
# Tokens of passes that compare lengths.
COMPARED = 1024
# Minimum repetitions and seconds of a measurement; one that takes longer than `LONG` is repeated
# once at most.
REPEATS, SECONDS = 3, 0.25

LONG = 0.5


class Point(NamedTuple):
    """A micro-batch of equal sequences."""

    sequences: int
    length: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def pairs(self) -> float:
        return self.tokens * self.length / 2

    @property
    def predicted(self) -> int:
        """Tokens of responses: half of each sequence."""
        return self.sequences * (self.length // 2)


class Sample(NamedTuple):
    """Times of a point."""

    at: Point
    forward: Parts
    beyond: Parts
    """Additional time of training."""


def points(max_tokens: int, longest: int) -> list[Point]:
    """Micro-batches to measure: powers of 4 of tokens in short sequences, one size in longer ones.

    Args:
        max_tokens: of a pass.
        longest: sequence of the model, in tokens.
    """
    lengths = _lengths(longest)
    shortest = lengths[0]
    sizes = [FEWEST]
    while sizes[-1] < max_tokens:
        sizes.append(min(4 * sizes[-1], max_tokens))
    if len(sizes) > 2 and sizes[-1] < 2 * sizes[-2]:
        # Noise would dominate the slope between two sizes that are close together.
        del sizes[-2]
    short = [Point(max(1, size // shortest), min(size, shortest)) for size in sizes]
    return list(dict.fromkeys([*short, *(Point(COMPARED // n, n) for n in lengths)]))


def _lengths(longest: int) -> list[int]:
    """Lengths to compare, ascending; at least two if the model has more than one position."""
    # Powers of two, so that sequences of each length can make up equally many tokens.
    lengths = [length for length in (SHORT, 128, 512, COMPARED) if length <= longest]
    if len(lengths) > 1:
        return lengths
    largest = 1 << (min(longest, COMPARED).bit_length() - 1)
    return sorted({max(1, min(SHORT, largest // 4)), largest})


def micro_batch(at: Point, vocab_size: int) -> MicroBatch:
    """Random prompts, with responses of equal length."""
    # A fixed seed: all ranks and repetitions compute the same.
    random = np.random.default_rng(at.tokens)
    halves = [
        pack([random.integers(0, vocab_size, size) for _ in range(at.sequences)], np.int32)
        for size in (at.length - at.length // 2, at.length // 2)
    ]
    groups = np.arange(at.sequences, dtype=np.int64)
    prompts, responses = halves
    (part,) = pack_micro_batches(
        prompts, responses, groups, Packing(at.tokens, SequenceCost(1.0), False)
    )
    return part


def measure_training(
    folder: Path,
    clock: Clock,
    device: torch.device,
    dtype: torch.dtype,
    max_tokens: int,
    begin: Callable[[str], None],
) -> TrainingCurves:
    """Measure the layers of a model.

    Args:
        folder: with the config of the layers.
        clock: of the device.
        device: of the model.
        dtype: of the model.
        max_tokens: of a pass.
        begin: reports the next measurement and waits for all ranks.
    """
    model = TimedModel(folder, clock, device, dtype)
    config = model.module.config
    requested = points(max_tokens, getattr(config, "max_position_embeddings", None) or COMPARED)
    plain = _samples(model, requested, begin)
    begin("the optimizer")
    optimizer, num_layers = measure_optimizer(model), len(model.blocks())
    del model
    _free(device)  # the next one is as large
    recomputing = TimedModel(folder, clock, device, dtype, recompute=True)
    recomputed = _samples(recomputing, fewer(requested), begin)
    return TrainingCurves(
        forward=_curves(((sample.at, sample.forward) for sample in plain), num_layers),
        backward=_curves(((sample.at, sample.beyond) for sample in plain), num_layers),
        recomputed=_curves(((sample.at, sample.beyond) for sample in recomputed), num_layers),
        optimizer=optimizer,
    )


def _free(device: torch.device) -> None:
    # Hooks refer to their models in cycles, which only the collector frees.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def fewer(points: Sequence[Point]) -> list[Point]:
    """Every second point, with the smallest and the largest one, and the extreme lengths."""
    equal = (point for point in points if point.tokens == COMPARED)
    compared = sorted(equal, key=lambda point: point.length)
    short = [point for point in points if point.length <= compared[0].length]
    return list(dict.fromkeys([*short[::-2], short[0], compared[0], compared[-1]]))


def _samples(
    model: TimedModel, requested: Iterable[Point], begin: Callable[[str], None]
) -> list[Sample]:
    config = model.module.config
    samples = []
    for at in requested:
        part = micro_batch(at, config.vocab_size)
        text = f"passes of {at.sequences} x {at.length} tokens"
        begin(f"forward {text}")
        forward = min(repeated(partial(model.infer, part)), key=lambda parts: parts.total)
        begin(f"training {text}")
        best = min(repeated(partial(model.train, part)), key=lambda both: sum(map(sum, both)))
        more = (there + back - alone for there, back, alone in zip(*best, forward, strict=True))
        # Noise may make a difference negative.
        samples.append(Sample(at, forward, Parts(*(max(0.0, seconds) for seconds in more))))
    return samples


def repeated(measure: Callable[[], T]) -> list[T]:
    """Repeat a measurement: fast ones for a while, slow ones once or not at all."""
    begin = time.perf_counter()
    # The first one also allocates memory: of a fast measurement it does not count.
    first = measure()
    if (seconds := time.perf_counter() - begin) > LONG:
        return [first, measure()] if seconds < 4 * LONG else [first]
    results: list[T] = []
    begin = time.perf_counter()
    while len(results) < REPEATS or time.perf_counter() - begin < SECONDS:
        results.append(measure())
    return results


def _curves(measured: Iterable[tuple[Point, Parts]], num_layers: int) -> PassCurves:
    rows = list(measured)
    return PassCurves(
        block=block_curves((at.tokens, at.pairs, parts.blocks / num_layers) for at, parts in rows),
        embedding=curve_of((at.tokens, parts.embedding) for at, parts in rows),
        head=curve_of((at.predicted, parts.head) for at, parts in rows),
    )


def measure_optimizer(model: TimedModel) -> Curve:
    """Measure clipping and a step, for a block's parameters and for all."""
    samples = []
    # Two sizes determine a line: time over parameters.
    for module in (model.blocks()[0], model.module):
        optimizer = TimedOptimizer(module, model.clock)
        samples.append((float(optimizer.num_parameters), min(repeated(optimizer.step))))
    return curve_of(samples)


class TimedOptimizer:
    """An optimizer of parameters like those of a module, with constant gradients."""

    def __init__(self, module: nn.Module, clock: Clock) -> None:
        self._stepped = {
            name: nn.Parameter(torch.zeros_like(parameter, dtype=torch.float32))
            for name, parameter in module.named_parameters()
        }
        self._gradients = [torch.full_like(parameter, 1e-3) for parameter in self._stepped.values()]
        self._optimizer = Optimizer(self._stepped, SETTINGS)
        self._clock = clock

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._stepped.values())

    def step(self) -> float:
        """Seconds of clipping and one step."""
        for parameter, gradient in zip(self._stepped.values(), self._gradients, strict=True):
            parameter.grad = gradient
        self._clock.mark()
        self._optimizer.step()
        self._clock.mark()
        return self._clock.read()[0]
