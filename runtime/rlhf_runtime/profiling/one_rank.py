"""The measurement of one process: the machine's constants, then every model.

The process imports this after it has set its environment.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.generation import key_value_heads_per_rank
from rlhf_planner.problem.profile import (
    Constants,
    GenerationCurves,
    Measured,
    ModelProfile,
    Profile,
    TrainingCurves,
)
from rlhf_runtime.engines.host_memory import keep_free_pages
from rlhf_runtime.engines.world import World
from rlhf_runtime.profiling.constants import link_seconds, memory_bytes_per_second
from rlhf_runtime.profiling.generation import ENGINE, EngineConfig, measure_generation, runs_for
from rlhf_runtime.profiling.setup import Setup
from rlhf_runtime.profiling.subjects import Subject, generation_layers, training_layers, write_part
from rlhf_runtime.profiling.timed_model import Clock, Now
from rlhf_runtime.profiling.training import measure_training
from rlhf_runtime.roles.context import DTYPES
from rlhf_runtime.roles.generation import DTYPE_NAMES
from rlhf_runtime.roles.generation_engines import library_version

Say = Callable[[str], None]
COLLECTIVE_SECONDS = 600.0


def measure_all(rank: int, setup: Setup, say: Say) -> Profile:
    """Measure everything. Collective over all ranks.

    Args:
        rank: of this process.
        setup: with the models.
        say: reports progress.
    """
    torch.set_num_threads(setup.threads)
    if setup.device is Device.CPU:
        # As ranks of a job do: page faults would change the times.
        keep_free_pages()
    device = torch.device("cuda", 0) if setup.device is Device.GPU else torch.device("cpu")
    store = FileStore(str(setup.folder / "store"), setup.ranks)
    world = World.join(rank, setup.ranks, store, device, COLLECTIVE_SECONDS)
    measuring = _Measuring(setup, world, say)
    # All ranks measure in the same order: every measurement is collective.
    constants = measuring.constants()
    models = tuple(
        measuring.model(subject, setup.folder / f"model{number}-rank{rank}")
        for number, subject in enumerate(setup.subjects)
    )
    dist.barrier()
    # Only now: otherwise others fail in a collective and report before the rank that failed.
    world.close()
    curves = [model.generation for model in models if model.generation is not None]
    # The engine's own work per step takes at most as long as the fastest step.
    steps = [min(generation.step.seconds) for generation in curves]
    return Profile(
        measured=Measured(
            device=setup.device,
            name=_device_name(device),
            ranks=setup.ranks,
            threads=setup.threads,
            torch=torch.__version__,
            vllm=library_version(ENGINE) if steps else None,
        ),
        constants=constants.model_copy(update={"engine_step_seconds": min(steps, default=None)}),
        models=models,
    )


class _Measuring:
    """The measurements of one rank."""

    def __init__(self, setup: Setup, world: World, say: Say) -> None:
        self._world, self._say = world, say
        self._now: Now = time.process_time if setup.cpu_seconds else time.perf_counter
        self._clock = Clock(world.device, self._now)

    def constants(self) -> Constants:
        """Measure memory and links."""
        self._begin("memory and links")
        bandwidth = memory_bytes_per_second(self._clock, self._world.device)
        if self._world.size == 1:
            return Constants(memory_bytes_per_second=bandwidth)
        links = link_seconds(self._clock, self._world.device)
        return Constants(
            memory_bytes_per_second=bandwidth,
            link_bytes_per_second=links.bytes_per_second,
            collective_seconds=links.seconds,
        )

    def model(self, subject: Subject, folder: Path) -> ModelProfile:
        """Measure the layers of a model.

        Args:
            subject: the model.
            folder: for its configs; it must not exist.
        """
        self._say(subject.title)
        shape, precision, tensor = subject.key
        return ModelProfile(
            name=subject.name,
            shape=shape,
            precision=precision,
            tensor=tensor,
            training=self._training(subject, folder) if subject.computes else None,
            generation=self._generation(subject, folder) if subject.generates else None,
        )

    def _training(self, subject: Subject, folder: Path) -> TrainingCurves:
        return measure_training(
            write_part(subject, training_layers(subject), folder / "training"),
            self._clock,
            self._world.device,
            DTYPES[subject.precision],
            subject.micro_batch_tokens,
            self._begin_named(subject),
        )

    def _generation(self, subject: Subject, folder: Path) -> GenerationCurves:
        number_bytes = 2 if subject.precision is Precision.BFLOAT16 else 4
        heads = key_value_heads_per_rank(subject.shape, subject.tensor)
        # Keys and values.
        token_bytes = 2 * heads * subject.shape.head_dim * number_bytes
        # The difference of the two depths gives the time of blocks without the engine's own.
        few, many = (
            EngineConfig(
                write_part(subject, count, folder / f"generation-{count}"), count, token_bytes
            )
            for count in (1, generation_layers(subject))
        )
        runs = runs_for(subject.max_sequences, subject.max_positions)
        dtype = DTYPE_NAMES[DTYPES[subject.precision]]
        begin = self._begin_named(subject)
        return measure_generation((few, many), self._world, dtype, runs, begin, self._now)

    def _begin_named(self, subject: Subject) -> Say:
        return lambda text: self._begin(f"{subject.name}: {text}")

    def _begin(self, text: str) -> None:
        """Report the next measurement, and wait for all ranks."""
        self._say(text)
        # Ranks of a job compute at the same time, and share the memory's bandwidth.
        dist.barrier()


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine() or "CPU"
