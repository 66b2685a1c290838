"""Short runs of the generation engine: what a pass over prompts and a decoding step take.

Two engines, of one block and of a few, tell blocks from the rest. Weights are random, as vLLM makes
them.
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
from rlhf_planner.memory.generation import KV_BLOCK_TOKENS
from rlhf_planner.problem.profile import Curve, GenerationCurves, block_curves, curve_of
from rlhf_runtime.dataplane.columns import pack
from rlhf_runtime.engines.vllm.arguments import EngineSettings
from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.engines.vllm.requests import Sampling
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.profiling.timed_model import Now

DECODED = 9
"""Tokens of each response."""
REPEATS = 4
"""Of each run; the first does not count."""


class Run(NamedTuple):
    """Prompts that are answered at once."""

    sequences: int
    prompt: int
    """Tokens of each."""

    @property
    def tokens(self) -> int:
        """Of all prompts."""
        return self.sequences * self.prompt

    @property
    def pairs(self) -> float:
        """Of tokens of prompts of which one looks at the other."""
        return self.tokens * self.prompt / 2

    @property
    def cached(self) -> float:
        """Tokens in the cache in the middle of decoding."""
        return self.sequences * (self.prompt + (DECODED + 1) / 2)


SHORT = 16
"""Tokens of a prompt where its length does not matter."""
RUNS = tuple(
    Run(*run) for run in [(1, 16), (8, 16), (64, 16), (64, 32), (8, 256), (2, 1024), (8, 512)]
)
"""Three of them with equally many tokens; two with equally many sequences."""
COMPARED = 1024
"""Tokens with which lengths are compared, at most, where none of those have equally many."""
MOST_SEQUENCES = 256
"""Of a run."""
SHORTEST_CONTEXT = DECODED + 3
"""Tokens of a sequence that a model has to take: prompts of one token and of two are compared."""


class StepSeconds(NamedTuple):
    """What a run took."""

    prefill: float
    """The pass over prompts, with the first token."""
    decode: float
    """A step of one token for each sequence."""

    def minus(self, other: StepSeconds, divisor: float) -> StepSeconds:
        """The difference, divided."""
        return StepSeconds(*((a - b) / divisor for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class EngineOf:
    """What an engine is built of."""

    folder: Path
    """With the config of a model, in a folder of the rank's model in one of the measurement."""
    num_layers: int
    """Of it."""
    key_value_bytes: int
    """Of one token in one layer."""


def runs_for(max_sequences: int, longest: int) -> list[Run]:
    """Runs that a model and a limit of sequences allow: shorter, and with fewer. Equally many
    sequences occur with two lengths; equally many tokens, too, where two sequences are allowed.

    Args:
        max_sequences: of a run.
        longest: sequence that the model takes.

    Raises:
        UnsupportedModel: it takes too short ones.
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
        chosen.append(Run(min(max_sequences, MOST_SEQUENCES), short))
    chosen = list(dict.fromkeys(chosen))
    if len({run.tokens for run in chosen}) == len(chosen):
        chosen += _equal_tokens(max_sequences, longest_prompt)
    return list(dict.fromkeys(chosen))


def _equal_tokens(max_sequences: int, longest_prompt: int) -> list[Run]:
    """As many tokens in some sequences as in one."""
    some = min(8, max_sequences, longest_prompt)
    length = min(longest_prompt, COMPARED) // some
    return [Run(some, length), Run(1, some * length)]


def measure_generation(
    engines: tuple[EngineOf, EngineOf],
    world: World,
    dtype: str,
    runs: list[Run],
    begin: Callable[[str], None],
    now: Now,
) -> GenerationCurves:
    """Curves of the layers of a model. Collective over the world, in which each rank has an engine
    of its own.

    Args:
        engines: the same model with one block, and with more.
        world: of all that measure.
        dtype: in which they compute.
        runs: to be measured.
        begin: is told what is measured, before each run; returns when all ranks are there.
        now: seconds since some moment.
    """
    low, high = (_measure_engine(each, world, dtype, runs, begin, now) for each in engines)
    few, many = (each.num_layers for each in engines)
    return generation_curves(low, high, few, many)


def generation_curves(
    low: dict[Run, StepSeconds], high: dict[Run, StepSeconds], few: int, many: int
) -> GenerationCurves:
    """Curves of what two engines took.

    Args:
        low: of each run with the fewer blocks.
        high: with more of them.
        few: blocks of the former.
        many: blocks of the latter.
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
    """By tokens in the cache, from the runs of equally many sequences with fewest and with most."""
    by_sequences: dict[int, list[Run]] = {}
    for run in block:
        by_sequences.setdefault(run.sequences, []).append(run)
    spans = [(min(found), max(found)) for found in by_sequences.values() if len(found) > 1]
    few, many = max(spans, key=lambda span: span[1].cached - span[0].cached)
    slope = max(0.0, block[many].decode - block[few].decode) / (many.cached - few.cached)
    return Curve(at=(0.0, many.cached), seconds=(0.0, slope * many.cached))


def _measure_engine(
    of: EngineOf,
    world: World,
    dtype: str,
    runs: list[Run],
    begin: Callable[[str], None],
    now: Now,
) -> dict[Run, StepSeconds]:
    """The least seconds of each run."""
    engine = VllmEngine(_settings(of, world, dtype, runs), world)
    engine.weights_written()
    vocabulary = 64
    found = {}
    for run in runs:
        text = f"{run.sequences} prompts of {run.prompt} tokens, {of.num_layers} deep"
        begin(f"generation with {text}")
        taken = [_run(engine, run, vocabulary, now) for _ in range(REPEATS)][1:]
        found[run] = StepSeconds(*map(min, zip(*taken, strict=True)))
    engine.close()
    return found


def _run(engine: VllmEngine, run: Run, vocabulary: int, now: Now) -> StepSeconds:
    random = np.random.default_rng(run.tokens)
    prompts = pack(
        [random.integers(0, vocabulary, run.prompt) for _ in range(run.sequences)], np.int32
    )
    marks = [now()]
    sampling = Sampling(1.0, range(run.sequences))
    engine.generate(prompts, sampling, tick=lambda: marks.append(now()), max_tokens=DECODED)
    steps = [end - begin for begin, end in zip(marks, marks[1:], strict=False)]
    prefill, *decode = steps[:DECODED]
    return StepSeconds(prefill, median(decode))


def world_name(of: EngineOf) -> str:
    """Of an engine's ranks: with the folder of this measurement, which has a random name."""
    measurement, model = of.folder.parts[-3:-1]
    return f"{measurement}-{model}-{of.num_layers}"


def _settings(of: EngineOf, world: World, dtype: str, runs: list[Run]) -> EngineSettings:
    block = KV_BLOCK_TOKENS[Device.CPU if world.device.type == "cpu" else Device.GPU]
    blocks = max(run.sequences * -(-(run.prompt + DECODED) // block) for run in runs) + 8
    cache = blocks * block * of.key_value_bytes * of.num_layers
    memory = 0 if world.device.type == "cpu" else torch.cuda.mem_get_info(world.device)[0]
    return EngineSettings(
        folder=of.folder,
        dtype=dtype,
        groups=tuple((rank,) for rank in range(world.size)),
        kv_cache_bytes=max(cache, 1 << 24),
        memory_bytes=max(2 * cache, memory // 2),
        max_prompt_tokens=max(run.prompt for run in runs),
        max_response_tokens=DECODED,
        max_concurrent_sequences=max(run.sequences for run in runs),
        block_tokens=block,
        stop_token_ids=(),
        world=world_name(of),
    )
