"""Ranks of bench-estimator: they run the engines of training and generation, as roles do."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from estimator_plans import GENERATE, INFER, TRAIN, BenchModel, Job, generation_load
from outcome import note

from rlhf_runtime.end_with_parent import end_with

ROUNDS = 3
"""Rounds of a call; the first one allocates memory and does not count."""
MAX_SECONDS = 4.0
"""Time after which a call has no further rounds."""
COLLECTIVE_SECONDS = 600.0


@dataclass(frozen=True)
class Work:
    """Jobs of one model on a number of ranks."""

    model: BenchModel
    folder: Path
    """Files of the model."""
    jobs: tuple[Job, ...]
    """Jobs on exactly `ranks` ranks."""
    ranks: int
    threads: int
    cpu_seconds: bool


def write_model(model: BenchModel, folder: Path) -> Path:
    """Write config and random weights of a model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**model.config())).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(model.config()))
    return folder


def run_work(work: Work, scratch: Path) -> list[dict[str, list[float]]]:
    """Run all jobs in processes of their own; returns seconds of rounds by call, for every job."""
    # Spawned, not forked: a rank imports torch with its own number of threads.
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    scratch.mkdir()
    processes = [
        context.Process(target=_rank, args=(rank, work, scratch, answers), daemon=True)
        for rank in range(work.ranks)
    ]
    try:
        for process in processes:
            process.start()
        seconds = _answer(processes, answers)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return seconds


def _answer(processes: Sequence[Any], answers: Any) -> list[dict[str, list[float]]]:
    """Wait for the first rank's answer.

    Raises:
        RuntimeError: a rank ended before.
    """
    while True:
        try:
            answer: list[dict[str, list[float]]] = answers.get(timeout=1.0)
        except queue.Empty:
            exit_codes = [process.exitcode for process in processes if not process.is_alive()]
            if exit_codes:
                raise RuntimeError(f"a rank ended with {exit_codes[0]}") from None
        else:
            return answer


def _rank(rank: int, work: Work, scratch: Path, answers: Any) -> None:
    end_with(os.getppid())
    # Libraries write a lot while they are imported.
    log = os.open(scratch / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    errors = os.dup(2)
    os.dup2(log, 2)
    # OpenMP reads it when torch is imported.
    os.environ["OMP_NUM_THREADS"] = str(work.threads)
    from rlhf_api.spec.resources import Device
    from rlhf_runtime.workers.libraries import import_libraries

    import_libraries(Device.CPU)
    import torch
    from torch._C._distributed_c10d import FileStore

    from rlhf_runtime.engines.host_memory import keep_free_pages
    from rlhf_runtime.engines.world import World

    torch.set_num_threads(work.threads)
    keep_free_pages()
    os.dup2(errors, 2)  # a traceback belongs on the terminal
    store = FileStore(str(scratch / "store"), work.ranks)
    device = torch.device("cpu")
    world = World.join(rank, work.ranks, store, device, COLLECTIVE_SECONDS)
    runner = Runner(work, world)
    seconds = [runner.run(job) for job in work.jobs]
    if rank == 0:
        answers.put(seconds)
        answers.close()
        answers.join_thread()  # the answer is out before the process ends
    world.close()


class Runner:
    """Engines of one model on one rank."""

    def __init__(self, work: Work, world: Any) -> None:
        from rlhf_api.mesh import Mesh
        from rlhf_runtime.engines.parallel import make_contexts

        self._work, self._world = work, world
        (self._parallel,) = make_contexts([Mesh(pool="cpu", data=work.ranks)], world).values()
        # Jobs that differ in training only generate the same: they do so once.
        self._generated: set[tuple[int, ...]] = set()
        self._now = time.process_time if work.cpu_seconds else time.perf_counter

    def run(self, job: Job) -> dict[str, list[float]]:
        """Run a job's calls; returns seconds of rounds by call."""
        import torch

        from rlhf_runtime.engines.fsdp.engine import FsdpEngine
        from rlhf_runtime.engines.training import ReadLogProbs, WeightedLoss
        from rlhf_runtime.profiling.training import SETTINGS

        if self._parallel.is_first:
            note(f"{self._work.model.name}: {job.name}")
        engine = FsdpEngine(
            self._work.folder, self._parallel, torch.float32, recompute=job.recompute
        )
        engine.use_optimizer(SETTINGS)
        parts = self._parts(job, engine, 1)[0]
        seconds = {INFER: self._rounds(lambda: engine.infer(parts, ReadLogProbs(), _forget))}
        updates = [
            WeightedLoss(ReadLogProbs(), part, lambda outputs, _: -outputs.values.mean())
            for part in self._parts(job, engine, job.mini_batches)
        ]
        seconds[TRAIN] = self._rounds(lambda: [engine.update([term]) for term in updates])
        sizes = (job.prompts, job.samples, job.prompt, job.response)
        if job.ranks == 1 and sizes not in self._generated:
            self._generated.add(sizes)
            seconds[GENERATE] = self._generate(job)
        return seconds

    def _parts(self, job: Job, engine: Any, mini_batches: int) -> list[Any]:
        """This rank's micro-batches of each mini-batch."""
        import numpy as np

        from rlhf_runtime.engines.packing import pack_micro_batches

        prompts, responses, groups = _rows(job, self._work.model.shape.vocab_size)
        size = job.prompts // mini_batches
        batches = []
        for mini in range(mini_batches):
            # Groups go to ranks in turns.
            own = [
                number
                for number in range(len(groups))
                if groups[number] // size == mini
                and groups[number] % job.ranks == self._parallel.rank
            ]
            rows = np.asarray(own, dtype=np.int64)
            batches.append(
                pack_micro_batches(
                    prompts, responses, groups, engine.packing(job.micro_batch), rows
                )
            )
        return batches

    def _rounds(self, call: Callable[[], object]) -> list[float]:
        import torch.distributed as dist

        seconds: list[float] = []
        while len(seconds) < ROUNDS and sum(seconds) < MAX_SECONDS:
            dist.barrier()  # waiting for a slower rank is no part of the call
            begin = self._now()
            call()
            seconds.append(self._now() - begin)
        return seconds[1:] or seconds

    def _generate(self, job: Job) -> list[float]:
        from rlhf_api.spec.rollout import GenerationEngineType
        from rlhf_planner.memory.generation import kv_bytes
        from rlhf_runtime.engines.generation import EngineSettings
        from rlhf_runtime.engines.response_batch import BatchGenerator, Sampling
        from rlhf_runtime.roles.generation_engines import make_generation_engine

        load = generation_load(self._work.model, job)
        cache = kv_bytes(load, 1, job.rows)
        settings = EngineSettings(
            folder=self._work.folder,
            dtype="float32",
            groups=((0,),),
            kv_cache_bytes=cache,
            memory_bytes=2 * cache,
            max_sequence_tokens=job.prompt + job.response,
            max_concurrent_sequences=job.rows,  # all at once, as predicted
            block_tokens=32,
            stop_token_ids=(),
            share_prompts=job.samples > 1 and job.prompt >= 32,
            world=f"estimator-{os.getpid()}",
        )
        engine = make_generation_engine(GenerationEngineType.VLLM, settings, self._world)
        engine.publish(0)
        generator = BatchGenerator(engine)
        prompts, _, _ = _rows(job, self._work.model.shape.vocab_size)
        sampling = Sampling(1.0, range(job.rows))
        seconds = self._rounds(partial(generator.generate, prompts, sampling, 0, job.response))
        engine.close()
        return seconds


def _forget(*_: object) -> None:
    """Discard outputs of a head."""


def _rows(job: Job, vocab_size: int) -> tuple[Any, Any, Any]:
    """Prompts and responses of a job's rows, and their groups."""
    import numpy as np

    from rlhf_runtime.dataplane.columns import pack

    random = np.random.default_rng(0)
    # Ids from 2: 1 ends a sequence.
    distinct = [random.integers(2, vocab_size, job.prompt) for _ in range(job.prompts)]
    prompts = pack([prompt for prompt in distinct for _ in range(job.samples)], np.int32)
    answers: Sequence[Any] = [random.integers(2, vocab_size, job.response) for _ in range(job.rows)]
    groups = np.repeat(np.arange(job.prompts, dtype=np.int64), job.samples)
    return prompts, pack(answers, np.int32), groups
