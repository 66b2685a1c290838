"""The processes that measure, one for each rank, and the profile of what they found.

All of them do the same at the same time, so that they share the machine as ranks of a job do; the
first one's times count.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import queue
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.planning.seconds.profile import Constants, Measured, ModelProfile, Profile
from rlhf_runtime.errors import ProfilingFailed
from rlhf_runtime.fate import end_with
from rlhf_runtime.profiling.subjects import Subject, write_part
from rlhf_runtime.workers.process import usable_cores

if TYPE_CHECKING:
    import torch

    from rlhf_flow.planning.seconds.profile import GenerationCurves, TrainingCurves
    from rlhf_runtime.engines.world import World
    from rlhf_runtime.profiling.timed_model import Now

Say = Callable[[str], None]
MOST_LAYERS = 3
"""Of models that are measured: some, so that weights of one are out of the caches when it is used
again."""
MODEL_BYTES = 4 << 30
"""Of the weights of those layers, about."""
COLLECTIVE_SECONDS = 600.0
LOG_LINES = 15


@dataclass(frozen=True)
class Setup:
    """What every process is told."""

    subjects: tuple[Subject, ...]
    device: Device
    ranks: int
    threads: int
    folder: Path
    """Empty, for what they need of files."""
    cpu_seconds: bool = False
    """Whether seconds are those in which the process computed, and not those of the wall clock:
    for benchmarks of one thread on a machine that does something else, too."""


def measure(
    subjects: Sequence[Subject],
    device: Device,
    ranks: int,
    say: Say,
    *,
    threads: int | None = None,
    cpu_seconds: bool = False,
) -> Profile:
    """Measure models' layers on this machine. Nothing is left when it is interrupted.

    Args:
        subjects: the models.
        device: what ranks compute on.
        ranks: that compute at the same time.
        say: is told what is done, a line each.
        threads: of each rank. None: its share of the cores.
        cpu_seconds: see `Setup`.

    Raises:
        ProfilingFailed: a process has ended, or raised.
    """
    share = threads or max(1, usable_cores() // ranks)
    with tempfile.TemporaryDirectory(prefix="rlhf-profile-") as folder:
        setup = Setup(tuple(subjects), device, ranks, share, Path(folder), cpu_seconds)
        with _processes(setup) as (processes, answers):
            return _answer(setup, processes, answers, say)


@contextmanager
def _processes(setup: Setup) -> Iterator[tuple[list[Any], Any]]:
    """All of them, and where they answer; none lives on."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [
        context.Process(target=_run_rank, args=(rank, os.getpid(), setup, answers), daemon=True)
        for rank in range(setup.ranks)
    ]
    try:
        for process in processes:
            process.start()
        yield processes, answers
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _answer(setup: Setup, processes: list[Any], answers: Any, say: Say) -> Profile:
    while True:
        try:
            kind, value = answers.get(timeout=1.0)
        except queue.Empty:
            if all(process.is_alive() for process in processes):
                continue
            ended = next(n for n, process in enumerate(processes) if not process.is_alive())
            kind, value = "failed", f"rank {ended} ended with {processes[ended].exitcode}"
        if kind == "profile":
            return Profile.model_validate_json(value)
        if kind == "failed":
            raise ProfilingFailed(
                f"layers could not be measured: got {value}\n{_last_lines(setup.folder)}\nsee to "
                "what these lines say (memory, the model's config), then give the command again"
            )
        say(value)


def _last_lines(folder: Path) -> str:
    logs = sorted(folder.glob("rank*.log"))
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return "\n".join(lines[-LOG_LINES:])


def _run_rank(rank: int, parent: int, setup: Setup, answers: Any) -> None:
    """Be a rank: measure everything, and, as the first, say it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends all
    end_with(parent)
    log = os.open(setup.folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["OMP_NUM_THREADS"] = str(setup.threads)
    if setup.device is Device.GPU:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)

    def say(text: str) -> None:
        if rank == 0:
            answers.put(("progress", text))

    try:
        profile = _measure_all(rank, setup, say)
    except Exception as error:
        import traceback

        traceback.print_exc()
        answers.put(("failed", f"{type(error).__name__}: {error}"))
        raise
    if rank == 0:
        answers.put(("profile", profile.to_json()))


def _measure_all(rank: int, setup: Setup, say: Say) -> Profile:
    say("importing libraries")
    from rlhf_runtime.workers.libraries import import_libraries

    import_libraries(setup.device)
    import time

    import torch
    from torch._C._distributed_c10d import FileStore

    from rlhf_runtime.engines.vllm.libraries import vllm_version
    from rlhf_runtime.engines.world import World
    from rlhf_runtime.profiling.constants import link_seconds, memory_bytes_per_second
    from rlhf_runtime.profiling.timed_model import Clock

    torch.set_num_threads(setup.threads)
    device = torch.device("cuda", 0) if setup.device is Device.GPU else torch.device("cpu")
    store = FileStore(str(setup.folder / "store"), setup.ranks)
    world = World.join(rank, setup.ranks, store, device, COLLECTIVE_SECONDS)
    now = time.process_time if setup.cpu_seconds else time.perf_counter
    clock = Clock(device, now)
    say("memory and links")
    bandwidth = memory_bytes_per_second(clock, device)
    links = link_seconds(clock, device) if setup.ranks > 1 else None
    models = tuple(
        _measure_model(number, subject, rank, setup, world, say, now)
        for number, subject in enumerate(setup.subjects)
    )
    steps = [min(each.generation.step.seconds) for each in models if each.generation is not None]
    world.close()
    return Profile(
        measured=Measured(
            device=setup.device,
            name=_device_name(device),
            ranks=setup.ranks,
            threads=setup.threads,
            torch=torch.__version__,
            vllm=vllm_version() if steps else None,
        ),
        constants=Constants(
            memory_bytes_per_second=bandwidth,
            engine_step_seconds=min(steps, default=None),
            link_bytes_per_second=None if links is None else links.bytes_per_second,
            collective_seconds=None if links is None else links.seconds,
        ),
        models=models,
    )


def _measure_model(
    number: int, subject: Subject, rank: int, setup: Setup, world: World, say: Say, now: Now
) -> ModelProfile:
    def say_of(text: str) -> None:
        say(f"{subject.name}: {text}")

    folder = setup.folder / f"model{number}-rank{rank}"
    training = _training(subject, folder, world.device, say_of, now) if subject.computes else None
    generation = _generation(subject, folder, world, say_of, now) if subject.generates else None
    shape, precision, tensor = subject.key
    return ModelProfile(
        name=subject.name,
        shape=shape,
        precision=precision,
        tensor=tensor,
        training=training,
        generation=generation,
    )


def _training(
    subject: Subject, folder: Path, device: torch.device, say: Say, now: Now
) -> TrainingCurves:
    from rlhf_runtime.profiling.timed_model import Clock
    from rlhf_runtime.profiling.training import measure_training
    from rlhf_runtime.roles.context import DTYPES

    return measure_training(
        write_part(subject, measured_layers(subject), folder / "training"),
        Clock(device, now),
        device,
        DTYPES[subject.precision],
        subject.micro_batch_tokens,
        say,
    )


def _generation(
    subject: Subject, folder: Path, world: World, say: Say, now: Now
) -> GenerationCurves:
    from rlhf_flow.planning.generation_memory import key_value_heads_per_rank
    from rlhf_runtime.profiling.generation import EngineOf, measure_generation, runs_for
    from rlhf_runtime.roles.context import DTYPES
    from rlhf_runtime.roles.generation import DTYPE_NAMES

    number_bytes = 2 if subject.precision is Precision.BFLOAT16 else 4
    heads = key_value_heads_per_rank(subject.shape, subject.tensor)
    token_bytes = 2 * heads * subject.shape.head_dim * number_bytes
    few, many = (
        EngineOf(write_part(subject, count, folder / f"generation-{count}"), count, token_bytes)
        for count in (1, max(2, measured_layers(subject)))
    )
    runs = runs_for(subject.max_sequences, subject.max_positions)
    dtype = DTYPE_NAMES[DTYPES[subject.precision]]
    return measure_generation((few, many), world, dtype, runs, say, now)


def measured_layers(subject: Subject) -> int:
    """Layers of a model that are built."""
    size = subject.shape.block_parameters // subject.tensor * 16  # weights, gradients, moments
    return max(1, min(MOST_LAYERS, subject.shape.num_layers, MODEL_BYTES // size))


def _device_name(device: torch.device) -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine() or "CPU"
