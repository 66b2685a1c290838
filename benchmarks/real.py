"""bench-real: a real language model beside what people would use without us.

SmolLM2-135M-Instruct, the model and the sums of `make demo-real`. Parts and their baselines:
step:        a step of GRPO and the held-out score after the last one; TRL's GRPOTrainer
memory:      the planned peak of a rank; the peak of its process in the runs of `step`
generation:  tokens per second of our engine; vLLM's own `LLM`
update:      forward, backward and AdamW; the same in plain transformers and torch

The last two are stages of bench-rank. TRL has an environment of its own, .venv-trl, which this
program creates with uv.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from command_line import make_parser, parse
from learning import ROOT, make_real_model
from outcome import print_json, print_table, target_result
from peer_runs import Measured, Scenario, make_trl_environment, measure, report
from task import SUMS_INSTRUCTION

from rlhf_api.plan import Plan
from rlhf_api.plan_memory import MemoryUse, phase_peaks

FOLDER = ROOT / "rlhf-runs" / "smollm2"
OURS = "ours, 1 rank(s)"
RANK = Path(__file__).with_name("rank.py")


def scenario_of(model: Path) -> Scenario:
    """Example 17 from a folder's model, with the rows beside it."""
    source = {"promptField": "question", "systemPrompt": SUMS_INSTRUCTION}
    return Scenario(
        name="real",
        task="sums",
        model=model,
        prompts=16,
        max_new_tokens=10,
        learning_rate=2e-5,
        entrypoint="rlhf_runtime.rewards.math:verify",
        steps=15,
        target=0.6,
        devices=(1,),
        max_prompt_tokens=40,
        # The plan assumes full micro-batches, and that training goes on beside a checkpoint. The
        # process reaches its peak at the third checkpoint.
        micro_batch_tokens=512,
        checkpoint_every_steps=5,
        data={
            "train": {"path": str(model.parent / "train.jsonl"), **source},
            "evaluation": {"path": str(model.parent / "held-out.jsonl"), **source},
        },
    )


def memory_part(run: Path, measured: Measured, *, smallest: bool) -> dict[str, Any]:
    """Compare a plan's largest phase with the largest process of the runs."""
    plan = Plan.model_validate_json((run / "plan.json").read_text())
    # Libraries that stand by are in a process of their own.
    (memory,) = plan.memory
    items = tuple(item for item in memory.items if item.what is not MemoryUse.STANDBY)
    planned = max(peak.bytes for peak in phase_peaks(items)) / 2**20
    peak = max(measured.process_mebibytes)
    ratio = planned / peak
    print_table(["peak of a rank", "MiB"], [["planned", planned], ["measured", peak]])
    result = target_result(1 <= ratio <= 1.15, smallest=smallest)
    print(f"memory: planned {ratio:.2f}x of measured, target 1x to 1.15x: {result}\n")
    return {"planned_mebibytes": planned, "measured_mebibytes": peak, "ratio": ratio}


def rank_part(model: Path, *, smallest: bool, with_bare: bool) -> dict[str, Any]:
    """Run bench-rank with the model."""
    sizes = (4, 8, 8, 1) if smallest else (128, 32, 32, 3)
    names = ("rows", "prompt", "response", "rounds")
    options = [f"--{name}={size}" for name, size in zip(names, sizes, strict=True)]
    if not with_bare:
        options.append("--without-bare")
    # In a process of its own: what the runs before left behind must not count.
    command = [sys.executable, str(RANK), f"--model={model}", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    if done.returncode:
        sys.exit(f"bench-real: bench-rank ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if with_bare:
        speed = 1 / answer["generation"]["ratio"]
        result = target_result(speed >= 0.95, smallest=smallest)
        print(f"generation: {speed:.2f}x of vLLM's tokens/s, target at least 0.95x: {result}")
    ratio = answer["update"]["ratio"]
    result = target_result(ratio <= 1.15, smallest=smallest)
    print(f"update: {ratio:.2f}x of plain torch, target at most 1.15x: {result}")
    return answer


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="runs per system (default 1)")
    parser.add_argument("--steps", type=int, help="of every run")
    parser.add_argument(
        "--model", type=Path, help="another model in a folder like that of the demo"
    )
    parser.add_argument("--without-trl", action="store_true", help="only ours, without ratios")
    parser.add_argument("--without-bare", action="store_true", help="do not start vLLM's own LLM")
    options = parse(parser)
    python = None if options.without_trl else make_trl_environment()
    if options.model is None:
        make_real_model()
    scenario = scenario_of((options.model or FOLDER / "model").absolute())
    steps = options.steps or (1 if options.smallest else scenario.steps)
    with tempfile.TemporaryDirectory(prefix="bench-real-") as temporary:
        scratch = Path(temporary)
        try:
            measured = measure(scenario, python, steps, options.rounds, scratch)
        except RuntimeError as error:
            sys.exit(f"bench-real: {error}")
        (run, *_) = scratch.glob("*/run/plan.json")
        parts = {
            "step": report(scenario, steps, measured, options.smallest),
            "memory": memory_part(run.parent, measured[OURS], smallest=options.smallest),
        }
    rank = rank_part(scenario.model, smallest=options.smallest, with_bare=not options.without_bare)
    print_json("real", smallest=options.smallest, **parts, rank=rank)


if __name__ == "__main__":
    main()
