"""Measures short runs of the generation engine: the pass over prompts, and decoding steps.

The difference of two engines, with one block and with several, gives the time of a block. Weights
are random, as vLLM initializes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from rlhf_api.spec.resources import Device
from rlhf_api.spec.rollout import GenerationEngineType
from rlhf_planner.memory.generation import KV_BLOCK_TOKENS
from rlhf_planner.problem.profile import Curve, GenerationCurves, block_curves, curve_of
from rlhf_runtime.dataplane.columns import pack
from rlhf_runtime.engines.generation import EngineSettings
from rlhf_runtime.engines.response_batch import BatchGenerator, Sampling
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.profiling.timed_model import Now
from rlhf_runtime.roles.generation_engines import make_generation_engine

ENGINE = GenerationEngineType.VLLM
"""The measured engine."""
DECODED = 9
"""Tokens of each response."""
REPEATS = 4
"""Repetitions of each run; the first is a warm-up."""


class Run(NamedTuple):
    """A batch of equal prompts."""

    sequences: int
    prompt: int
    """Tokens per prompt."""

    @property
    def tokens(self) -> int:
        """Tokens of all prompts."""
        return self.sequences * self.prompt

    @property
    def pairs(self) -> float:
        """Attention pairs within prompts."""
        return self.tokens * self.prompt / 2

    @property
    def cached(self) -> float:
        """Tokens in the cache in the middle of decoding."""
        return self.sequences * (self.prompt + (DECODED + 1) / 2)


SHORT = 16
"""Tokens of a short prompt, for runs that do not vary its length."""
RUNS = tuple(
    Run(*run) for run in [(1, 16), (8, 16), (64, 16), (64, 32), (8, 256), (2, 1024), (8, 512)]
)
"""Default runs. Three have equally many tokens, two equally many sequences."""
COMPARED = 1024
"""Maximum tokens of runs that compare lengths, if no default runs have equally many tokens."""
MAX_SEQUENCES = 256
"""Maximum sequences of a run."""
SHORTEST_CONTEXT = DECODED + 3
"""Minimum context of a model: prompts of one and of two tokens are compared."""


class StepSeconds(NamedTuple):
    """Times of a run."""

    prefill: float
    """The pass over prompts, with the first token."""
    decode: float
    """A step of one token per sequence."""

    def minus(self, other: StepSeconds, divisor: float) -> StepSeconds:
        """The difference, divided by a number."""
        return StepSeconds(*((a - b) / divisor for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class EngineConfig:
    """The model of an engine."""

    folder: Path
    """Config folder, as MEASUREMENT/MODEL-AND-RANK/FOLDER."""
    num_layers: int
    key_value_bytes: int
    """Bytes per token and layer."""


def runs_for(max_sequences: int, longest: int) -> list[Run]:
    """The runs within the limits of a model.

    Some runs have equally many sequences and different lengths; with two sequences or more, some
    also have equally many tokens.

    Args:
        max_sequences: of a run.
        longest: sequence of the model, in tokens.

    Raises:
        UnsupportedModel: its context is too short.
    """
    if longest < SHORTEST_CONTEXT:
        raise UnsupportedModel(
            f"generation cannot be measured: got a model of {longest} positions, allowed "
            f"{SHORTEST_CONTEXT} or more; correct max_position_embeddings in its config.json"
        )
    longest_prompt = longest - DECODED - 1
    short = min(SHORT, longest_prompt // 2)
    chosen = [
        Run(
            min(sequences, max_sequences), short if prompt == SHORT else min(prompt, longest_prompt)
        )
        for sequences, prompt in RUNS
    ]
    if max_sequences > 64:
        chosen.append(Run(min(max_sequences, MAX_SEQUENCES), short))
    chosen = list(dict.fromkeys(chosen))
    if len({run.tokens for run in chosen}) == len(chosen):
        chosen += _equal_tokens(max_sequences, longest_prompt)
    return list(dict.fromkeys(chosen))


def _equal_tokens(max_sequences: int, longest_prompt: int) -> list[Run]:
    """Two runs of equally many tokens, in several sequences and in one."""
    some = min(8, max_sequences, longest_prompt)
    length = min(longest_prompt, COMPARED) // some
    return [Run(some, length), Run(1, some * length)]


def measure_generation(
    engines: tuple[EngineConfig, EngineConfig],
    world: World,
    dtype: str,
    runs: list[Run],
    begin: Callable[[str], None],
    now: Now,
) -> GenerationCurves:
    """Measure the layers of a model. Collective over the world; each rank has its own engine.

    Args:
        engines: the same model with one block, and with more.
        world: of all ranks.
        dtype: of the engines.
        runs: to measure.
        begin: reports the next measurement and waits for all ranks.
        now: clock, in seconds.
    """
    low, high = (_measure_engine(config, world, dtype, runs, begin, now) for config in engines)
    few, many = (config.num_layers for config in engines)
    return generation_curves(low, high, few, many)


def generation_curves(
    low: dict[Run, StepSeconds], high: dict[Run, StepSeconds], few: int, many: int
) -> GenerationCurves:
    """Curves from the times of two engines.

    Args:
        low: times of each run with fewer blocks.
        high: times with more blocks.
        few: number of blocks of `low`.
        many: number of blocks of `high`.
    """
    block = {run: high[run].minus(low[run], many - few) for run in low}
    rest = {
        run: StepSeconds(*(a - few * b for a, b in zip(low[run], block[run], strict=True)))
        for run in low
    }
    step = curve_of((run.sequences, max(0.0, rest[run].decode)) for run in low)
    cached = cached_curve(block)
    return GenerationCurves(
        prefill=block_curves((run.tokens, run.pairs, block[run].prefill) for run in low),
        embedding=curve_of((run.tokens, rest[run].prefill - step(run.sequences)) for run in low),
        sequences=curve_of((run.sequences, block[run].decode - cached(run.cached)) for run in low),
        cached=cached,
        step=step,
    )


def cached_curve(block: dict[Run, StepSeconds]) -> Curve:
    """Seconds by tokens in the cache, from two runs with equally many sequences."""
    by_sequences: dict[int, list[Run]] = {}
    for run in block:
        by_sequences.setdefault(run.sequences, []).append(run)
    spans = [(min(equal), max(equal)) for equal in by_sequences.values() if len(equal) > 1]
    few, many = max(spans, key=lambda span: span[1].cached - span[0].cached)
    slope = max(0.0, block[many].decode - block[few].decode) / (many.cached - few.cached)
    return Curve(at=(0.0, many.cached), seconds=(0.0, slope * many.cached))


def _measure_engine(
    config: EngineConfig,
    world: World,
    dtype: str,
    runs: list[Run],
    begin: Callable[[str], None],
    now: Now,
) -> dict[Run, StepSeconds]:
    """The minimum times of each run."""
    settings = _settings(config, world, dtype, runs)
    engine = make_generation_engine(ENGINE, settings, world)
    # The weights that it started with.
    engine.publish(0)
    generator = BatchGenerator(engine)
    vocabulary = 64
    times = {}
    for run in runs:
        text = f"{run.sequences} prompts of {run.prompt} tokens, {config.num_layers} deep"
        begin(f"generation with {text}")
        repeated = [_run(generator, run, vocabulary, now) for _ in range(REPEATS)][1:]
        times[run] = StepSeconds(*map(min, zip(*repeated, strict=True)))
    engine.close()
    return times


def _run(generator: BatchGenerator, run: Run, vocabulary: int, now: Now) -> StepSeconds:
    random = np.random.default_rng(run.tokens)
    prompts = pack(
        [random.integers(0, vocabulary, run.prompt) for _ in range(run.sequences)], np.int32
    )
    marks = [now()]
    sampling = Sampling(1.0, range(run.sequences))
    generator.generate(prompts, sampling, 0, DECODED, tick=lambda: marks.append(now()))
    steps = [end - begin for begin, end in zip(marks, marks[1:], strict=False)]
    prefill, *decode = steps[:DECODED]
    return StepSeconds(prefill, median(decode))


def world_name(config: EngineConfig) -> str:
    """A unique name of an engine's ranks, from the random name of the measurement's folder."""
    measurement, model = config.folder.parts[-3:-1]
    return f"{measurement}-{model}-{config.num_layers}"


def _settings(config: EngineConfig, world: World, dtype: str, runs: list[Run]) -> EngineSettings:
    block = KV_BLOCK_TOKENS[Device.CPU if world.device.type == "cpu" else Device.GPU]
    blocks = max(run.sequences * -(-(run.prompt + DECODED) // block) for run in runs) + 8
    cache = blocks * block * config.key_value_bytes * config.num_layers
    memory = 0 if world.device.type == "cpu" else torch.cuda.mem_get_info(world.device)[0]
    return EngineSettings(
        folder=config.folder,
        dtype=dtype,
        groups=tuple((rank,) for rank in range(world.size)),
        kv_cache_bytes=max(cache, 1 << 24),
        memory_bytes=max(2 * cache, memory // 2),
        max_sequence_tokens=max(run.prompt for run in runs) + DECODED,
        max_concurrent_sequences=max(run.sequences for run in runs),
        block_tokens=block,
        stop_token_ids=(),
        world=world_name(config),
        # As plans do, unless memory is short.
        packs_weights=world.device.type == "cpu",
    )
