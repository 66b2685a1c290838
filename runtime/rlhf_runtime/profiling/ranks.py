"""The processes that measure, one per rank, and the profile that they return."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from rlhf_api.spec.resources import Device
from rlhf_planner.problem.profile import Profile
from rlhf_runtime.end_with_parent import end_with
from rlhf_runtime.errors import NotEnoughResources, ProfilingFailed
from rlhf_runtime.profiling.setup import Setup
from rlhf_runtime.profiling.subjects import Subject
from rlhf_runtime.workers.libraries import import_libraries, prepare_environment
from rlhf_runtime.workers.process import usable_cores

Say = Callable[[str], None]
LOG_LINES = 15
# Interval of checks that the ranks are alive.
POLL_SECONDS = 1.0

VISIBLE = "CUDA_VISIBLE_DEVICES"


def measure(
    subjects: Sequence[Subject],
    device: Device,
    ranks: int,
    say: Say,
    *,
    threads: int | None = None,
    cpu_seconds: bool = False,
) -> Profile:
    """Measure models' layers on this machine. An interrupt ends all processes.

    Args:
        subjects: the models.
        device: of the ranks.
        ranks: number of concurrent ranks.
        say: reports progress, line by line.
        threads: of each rank. None: its share of the cores.
        cpu_seconds: see `Setup`.

    Raises:
        NotEnoughResources: fewer GPUs are visible than ranks.
        ProfilingFailed: a process has ended, or raised.
    """
    if device is Device.GPU:
        # Fail before any process starts.
        visible_gpus(ranks, os.environ)
    share = threads or max(1, usable_cores() // ranks)
    with tempfile.TemporaryDirectory(prefix="rlhf-profile-") as folder:
        setup = Setup(tuple(subjects), device, ranks, share, Path(folder), cpu_seconds)
        with _processes(setup) as (processes, answers):
            return _answer(setup, processes, answers, say)


@contextmanager
def _processes(setup: Setup) -> Iterator[tuple[list[Any], Any]]:
    """Start all processes, with a queue for their answers; end them at exit."""
    context = multiprocessing.get_context("spawn")  # CUDA does not work in forked processes
    answers = context.Queue()
    # All ranks measure the same at the same time: they share the machine as the ranks of a job do.
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


def _answer(setup: Setup, processes: Sequence[Any], answers: Any, say: Say) -> Profile:
    is_last_poll = False
    while True:
        try:
            kind, value = answers.get(timeout=POLL_SECONDS)
        except queue.Empty:
            lost = _lost(processes)
            if lost is None or not is_last_poll:  # its last answer may still arrive
                is_last_poll = lost is not None
                continue
            kind, value = "failed", f"rank {lost} ended with {processes[lost].exitcode}"
        if kind == "profile":
            return Profile.model_validate_json(value)
        if kind == "failed":
            raise ProfilingFailed(
                f"layers could not be measured: got {value}\n{_last_lines(setup.folder)}\ncorrect "
                "the cause in these lines (memory, the model's config), then repeat the command"
            )
        say(value)


def _lost(processes: Sequence[Any]) -> int | None:
    """A failed rank, or rank 0 if it has ended. None: all is well."""
    # The others may end before rank 0, which answers last.
    for rank, process in enumerate(processes):
        if process.exitcode is not None and (process.exitcode != 0 or rank == 0):
            return rank
    return None


def visible_gpus(ranks: int, environment: Mapping[str, str]) -> list[str]:
    """Assign each rank one of the GPUs of this process, as its `CUDA_VISIBLE_DEVICES`.

    Args:
        ranks: number of ranks.
        environment: of this process.

    Raises:
        NotEnoughResources: fewer GPUs than ranks.
    """
    value = environment.get(VISIBLE)
    if value is None:
        return [str(rank) for rank in range(ranks)]
    entries = takewhile(lambda entry: entry not in ("", "-1"), map(str.strip, value.split(",")))
    gpus = list(entries)  # CUDA also ignores all entries after an invalid one
    if len(gpus) < ranks:
        raise NotEnoughResources(
            f"the devices to measure on are not there: got {len(gpus)} in {VISIBLE}={value!r}, "
            f"needed {ranks}; correct {VISIBLE}, or ask for fewer with --devices"
        )
    return gpus[:ranks]


def _last_lines(folder: Path) -> str:
    logs = sorted(folder.glob("rank*.log"))
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return "\n".join(lines[-LOG_LINES:])


def _run_rank(rank: int, parent: int, setup: Setup, answers: Any) -> None:
    """Main function of a rank: measure everything; rank 0 answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends all
    end_with(parent)
    log = os.open(setup.folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # Native libraries write to file descriptors, not to sys.stdout.
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Libraries read the environment when they are imported.
    os.environ["OMP_NUM_THREADS"] = str(setup.threads)
    if setup.device is Device.GPU:
        os.environ[VISIBLE] = visible_gpus(setup.ranks, os.environ)[rank]

    def say(text: str) -> None:
        if rank == 0:
            answers.put(("progress", text))

    try:
        say("importing libraries")
        _import_libraries(setup)
        # Not before: it imports torch and vLLM.
        from rlhf_runtime.profiling.one_rank import measure_all

        profile = measure_all(rank, setup, say)
    except Exception as error:
        import traceback

        traceback.print_exc()
        answers.put(("failed", f"{type(error).__name__}: {error}"))
        raise
    if rank == 0:  # its times count
        answers.put(("profile", profile.to_json()))


def _import_libraries(setup: Setup) -> None:
    """Import the libraries of ranks; vLLM only if a model generates."""
    if any(subject.generates for subject in setup.subjects):
        import_libraries(setup.device)
    else:
        prepare_environment()
