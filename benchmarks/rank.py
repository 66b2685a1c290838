"""bench-rank: one rank without Ray, stage by stage, on a GPU if there is one.

A Llama with random weights, on a GPU 1.1 B parameters in bfloat16; or --model. Stages and their
baselines:
transfer:    the trainer's weights to the engine; a copy that reads and writes as many bytes
generation:  responses of equal length; vLLM's own `LLM` with its defaults
agreement:   log-probabilities of the engine's tokens by the trainer; no baseline
release:     the engine's memory is released and allocated again; no baseline
update:      forward, backward and AdamW; the same in plain transformers and torch

A stage that fails prints its traceback, and the others still run; the exit code is then 1.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import make_parser, parse
from outcome import note, print_json, print_table
from rank_load import Load, make_load, rank_load, write_random_llama

from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, OffloadDepth
from rlhf_api.spec.models import LearningRateDecay
from rlhf_api.spec.resources import Device
from rlhf_runtime.engines.generation import EngineSettings
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, pack_micro_batches
from rlhf_runtime.engines.parallel import RankGroup, make_contexts
from rlhf_runtime.engines.response_batch import BatchGenerator, Generated, Sampling
from rlhf_runtime.engines.training import ReadLogProbs, TokenOutputs, WeightedLoss
from rlhf_runtime.engines.vllm.libraries import vllm_version
from rlhf_runtime.engines.world import World, serve_store
from rlhf_runtime.reshard.execute import PreparedTransfer
from rlhf_runtime.reshard.gathering import gather_layouts
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.roles.weight_sync import WeightSync, WeightVersion
from rlhf_runtime.workers.libraries import import_libraries

MICRO_BATCH_TOKENS = 16_384
TRAINED_ROWS = 64
TEMPERATURES = (1.0, 0.7)
GIB = 2**30
BARE = Path(__file__).with_name("bare_generation.py")
MESH = Mesh(pool="rank", data=1)
INHERITED = dict(os.environ)
"""Without the variables that our imports set: the baseline has its own."""
REQUIRED = WeightVersion(GraphName.STEP, 1, 0)


class Rank:
    """Trainer, engine and the way between, on one device."""

    def __init__(self, folder: Path, load: Load, device: torch.device, with_bare: bool) -> None:
        self.folder, self.load, self.device, self.with_bare = folder, load, device, with_bare
        self.dtype = getattr(torch, load.dtype)
        self.prompts = rank_load(load)
        self.results: dict[str, Any] = {}

    def start(self) -> None:
        """Build the trainer, the engine and the transfer."""
        from rlhf_runtime.engines.fsdp.engine import FsdpEngine
        from rlhf_runtime.engines.vllm.engine import VllmEngine

        load = self.load
        world = World.join(0, 1, serve_store("127.0.0.1", 1, 60), self.device, 600)
        parallel = make_contexts([MESH], world)[MESH]
        self.trainer = FsdpEngine(self.folder, parallel, self.dtype)
        self.parameters = sum(
            view.tensor.numel() for views in self.trainer.views().values() for view in views
        )
        self._mark("trainer", f"{self.parameters / 1e6:.0f} M parameters")
        settings = EngineSettings(
            folder=self.folder,
            dtype=load.dtype,
            groups=MESH.tensor_groups,
            kv_cache_bytes=load.cache_bytes,
            memory_bytes=load.cache_bytes + 2 * load.item_bytes * self.parameters,
            max_sequence_tokens=load.prompt + load.response,
            max_concurrent_sequences=load.rows,
            block_tokens=32 if self.device.type == "cpu" else 16,
            stop_token_ids=(),
            world=f"bench-rank-{os.getpid()}",
            packs_weights=self.device.type == "cpu",
        )
        begin = time.perf_counter()
        self.engine = VllmEngine(settings, world)
        self.results["engine_start_seconds"] = time.perf_counter() - begin
        self._mark("engine", f"vLLM {vllm_version()}")
        ranks = RankGroup(0, 1, parallel.group)
        self.weight_sync = WeightSync(self.trainer, self.trainer.views(), self.engine, ranks)
        self.generator = BatchGenerator(self.engine)
        self.weight_sync.sync(REQUIRED)
        self._mark("first transfer", "verified")

    def transfer(self) -> None:
        """Transfers without checksums, and copies of as many bytes."""
        source_views, target_views = self.trainer.views(), self.engine.views()
        layouts = gather_layouts(source_views, target_views, None)
        prepared = PreparedTransfer(plan_reshard(*layouts), 0, source_views, target_views)
        read = sum(view.tensor.nbytes for views in source_views.values() for view in views)
        written = self.load.item_bytes * self.parameters
        half = (read + written) // 2
        source, target = torch.empty(2, half, dtype=torch.uint8, device=self.device).unbind()
        ours, baseline = self._rounds(prepared.run), self._rounds(lambda: target.copy_(source))
        self._record("transfer", ours, baseline, gigabytes_per_second=(read + written) / ours / 1e9)

    def generation(self) -> None:
        """Tokens per second of the engine and of vLLM alone."""
        first = self._generate()
        ours = self._rounds(self._generate)
        again = self._generate()
        self.results["equal_seeds_give_equal_tokens"] = same_tokens(first, again)
        self.results["equal_seeds_give_equal_log_probs"] = bool(
            (first.log_probs.values == again.log_probs.values).all()
        )
        tokens = self.load.rows * self.load.response
        self.results["tokens_per_second"] = tokens / ours
        self._mark("generation", f"{tokens / ours:.0f} tokens/s")
        if self.with_bare:
            # Both engines at once would share the device's memory, not its time.
            self.engine.release()
            bare = self._bare()
            self.weight_sync.sync(REQUIRED)
            self._record("generation", ours, statistics.median(bare["rounds"]))
            self.results["bare_engine_start_seconds"] = bare["start"]

    def agreement(self) -> None:
        """Distance between the log-probabilities of engine and trainer."""
        for temperature in TEMPERATURES:
            generated = self._generate(temperature)
            trained = torch.full((len(generated.tokens.values),), torch.nan)

            def read(outputs: TokenOutputs, part: MicroBatch, into: torch.Tensor = trained) -> None:
                into[part.tokens] = outputs.values.cpu()

            self.trainer.infer(self._pack(generated), ReadLogProbs(temperature), read)
            distance = (trained - torch.tensor(generated.log_probs.values)).abs()
            values = {"mean": float(distance.mean()), "max": float(distance.max())}
            self.results[f"log_prob_distance_at_{temperature}"] = values
            self._mark(f"agreement T={temperature}", str(values))

    def release(self) -> None:
        """Memory of the engine, given back and taken again."""
        before, free = self._generate(), self._free()
        self.engine.release()
        freed = self._free() - free
        begin = time.perf_counter()
        self.weight_sync.sync(REQUIRED)
        seconds = time.perf_counter() - begin
        needed = self.load.cache_bytes + self.load.item_bytes * self.parameters
        self.results["release"] = {
            "freed_gib": freed / GIB,
            "weights_and_cache_gib": needed / GIB,
            "wake_and_transfer_seconds": seconds,
            "same_tokens_after": same_tokens(before, self._generate()),
        }
        self._mark("release", str(self.results["release"]))

    def update(self) -> None:
        """Updates of the trainer, and of plain transformers with torch's AdamW."""
        generated = self._generate()
        parts = self._pack(generated, TRAINED_ROWS)
        # Colocated roles do the same: activations get the engine's memory.
        self.engine.release()
        settings = OptimizerSettings(
            1e-5, LearningRateDecay.NONE, 0, 100, 0.9, 0.95, 1e-8, 0.0, 1.0
        )
        self.trainer.use_optimizer(settings)
        number = sum(len(part.targets) for part in parts)

        def loss(outputs: TokenOutputs, _part: MicroBatch) -> torch.Tensor:
            return -outputs.values.sum() / number

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        term = WeightedLoss(ReadLogProbs(), parts, loss)
        ours = self._rounds(lambda: self.trainer.update([term]))
        peak = self._peak()
        # Two models with optimizers at once need not fit.
        self.trainer.offload(OffloadDepth.EVERYTHING)
        self._collect()
        baseline = self._rounds(self._plain_update(parts, number))
        tokens = sum(part.token_ids.numel() for part in parts)
        self._record(
            "update",
            ours,
            baseline,
            tokens_per_second=tokens / ours,
            teraflops=6 * self.parameters * tokens / ours / 1e12,
            peak_gib=peak,
        )

    def _plain_update(self, parts: list[MicroBatch], number: int) -> Callable[[], None]:
        """An update as a careful script writes it, with the same micro-batches."""
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        model = model.to(self.device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

        def run() -> None:
            for part in parts:
                moved = part.to(self.device)
                # The head runs only where a response token is predicted, as ours does.
                half = self.dtype is torch.bfloat16
                with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                    hidden = model.model(input_ids=moved.token_ids, use_cache=False)[0]
                    logits = model.lm_head(hidden.flatten(0, 1)[moved.predictors])
                values = torch.log_softmax(logits.float(), -1)
                chosen = values.gather(1, moved.targets[:, None])
                (-chosen.sum() / number).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return run

    def _pack(self, generated: Generated, rows: int | None = None) -> list[MicroBatch]:
        groups = np.arange(self.load.rows)
        chosen = None if rows is None else groups[:rows]
        packing = self.trainer.packing(MICRO_BATCH_TOKENS)
        return pack_micro_batches(self.prompts, generated.tokens, groups, packing, chosen)

    def _generate(self, temperature: float = 1.0) -> Generated:
        version = self.weight_sync.current_version(REQUIRED)
        sampling = Sampling(temperature, list(range(self.load.rows)))
        return self.generator.generate(self.prompts, sampling, version, self.load.response)

    def _bare(self) -> dict[str, Any]:
        load = json.dumps(asdict(self.load))
        command = [sys.executable, str(BARE), str(self.folder), load]
        if self.device.type == "cuda":
            # vLLM refuses to start with less free memory than its share.
            free, total = torch.cuda.mem_get_info()
            command += ["--memory-share", f"{0.5 * free / total:.3f}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=INHERITED)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def _rounds(self, run: Callable[[], Any]) -> float:
        """Median seconds of a round, after one that does not count."""
        seconds = []
        for _ in range(self.load.rounds + 1):
            self._synchronize()
            begin = time.perf_counter()
            run()
            self._synchronize()
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds[1:])

    def _record(self, stage: str, ours: float, baseline: float, **others: float) -> None:
        values = {"seconds": ours, "baseline": baseline, "ratio": ours / baseline, **others}
        self.results[stage] = values
        self._mark(stage, ", ".join(f"{name} {value:.4g}" for name, value in values.items()))

    def _mark(self, stage: str, text: str) -> None:
        used = ""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info()
            used = f" [{(total - free) / GIB:.2f} GiB in use]"
        note(f"{time.perf_counter() - BEGIN:6.1f} s  {stage}: {text}{used}")

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _collect(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _free(self) -> int:
        return torch.cuda.mem_get_info()[0] if self.device.type == "cuda" else 0

    def _peak(self) -> float:
        return torch.cuda.max_memory_allocated() / GIB if self.device.type == "cuda" else 0.0


def same_tokens(one: Generated, other: Generated) -> bool:
    """True if all responses are equal."""
    return bool(np.array_equal(one.tokens.values, other.tokens.values))


def main() -> None:
    """Run the stages, print a table and a line of JSON."""
    parser = make_parser(__doc__)
    parser.add_argument("--cpu", action="store_true", help="also where there is a GPU")
    parser.add_argument("--without-bare", action="store_true", help="do not start vLLM's own LLM")
    on_gpu = torch.cuda.is_available()
    sizes = (2048, 16, 256, 128, 256) if on_gpu else (512, 4, 32, 32, 32)
    for name, size in zip(("hidden", "layers", "rows", "prompt", "response"), sizes, strict=True):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument(
        "--model", type=Path, help="a model's folder; --hidden, --layers are its own"
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parse(parser, hidden=128, layers=2, rows=4, prompt=8, response=8, rounds=1)
    device = torch.device("cuda", 0) if on_gpu and not options.cpu else torch.device("cpu")
    import_libraries(Device.GPU if device.type == "cuda" else Device.CPU)
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    with tempfile.TemporaryDirectory(prefix="bench-rank-") as temporary:
        folder = options.model
        if folder is None:
            folder = Path(temporary)
            write_random_llama(folder, options.hidden, options.layers, dtype, str(device))
        load = make_load(folder, dtype, options)
        rank = Rank(folder, load, device, not options.without_bare)
        failed = run_stages(rank)
    print_results(rank, failed, smallest=options.smallest)
    sys.exit(bool(failed))


def run_stages(rank: Rank) -> list[str]:
    """Run all stages; return the names of those that failed."""
    rank.start()
    failed = []
    # A GPU is often lent for minutes: a fault must not cost the other figures.
    for stage in (rank.transfer, rank.generation, rank.agreement, rank.release, rank.update):
        try:
            stage()
        except Exception:
            failed.append(stage.__name__)
            traceback.print_exc()
    return failed


def print_results(rank: Rank, failed: Sequence[str], *, smallest: bool) -> None:
    """Print the table of stages with a baseline, and all figures as JSON."""
    table = [
        (name, 1000 * values["seconds"], 1000 * values["baseline"], f"{values['ratio']:.2f}")
        for name, values in rank.results.items()
        if isinstance(values, dict) and "ratio" in values
    ]
    print_table(("median ms", "ours", "baseline", "ratio"), table)
    device = torch.cuda.get_device_name() if rank.device.type == "cuda" else "CPU"
    print_json(
        "rank",
        smallest=smallest,
        device=device,
        parameters=rank.parameters,
        sizes=asdict(rank.load),
        failed=failed,
        **rank.results,
    )


BEGIN = time.perf_counter()

if __name__ == "__main__":
    main()
