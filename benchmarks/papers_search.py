"""Cost of the search for a plan, and its gain over heuristics.

Compared with HybridFlow's figure 16 and with ReaL.

The Megatron heuristic: one cut for all calls of all roles on all GPUs, the smallest that fits
(rlhf_planner/baselines). ReaL's own rule and HybridFlow's mapper are shown, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import mean

from papers_job import LONG, SHORT, Batch
from papers_placements import Comparison
from papers_verdict import same_share, within

from rlhf_planner.baselines.all import HYBRIDFLOW, MEGATRON, REAL

PAPERS_MAPPER_SECONDS = 1800.0
"""Longest search, half an hour. Source: HybridFlow, section 8.5."""
RULES_COMPARED = (MEGATRON, REAL, HYBRIDFLOW)
# ReaL scales GPUs with the size of the model.
GAIN_GPUS = {"7B": 16, "13B": 32, "34B": 64, "70B": 128}
"""GPUs by model for the comparison with heuristics."""
# Only roughly comparable: ReaL's GPUs are H100, and its batches differ.
PAPERS_GAIN: Mapping[Batch, float] = {SHORT: 0.26, LONG: 0.81}
"""Average gain over a Megatron-style heuristic. Source: ReaL (arXiv 2406.14088), first version, and
last version with long contexts."""


def mapper_rows(comparisons: Mapping[tuple[str, int], Comparison]) -> list[list[object]]:
    """CPU seconds of the planner, by model and GPUs."""
    numbers = sorted({num_gpus for _, num_gpus in comparisons})
    seconds = {job: result.cpu_seconds for job, result in comparisons.items()}
    models = dict.fromkeys(model for model, _ in comparisons)
    return [[model, *(seconds.get((model, number)) for number in numbers)] for model in models]


def mapper_finding(comparisons: Mapping[tuple[str, int], Comparison]) -> list[object]:
    """Row: the paper's longest search, ours, the verdict."""
    longest = max(result.cpu_seconds for result in comparisons.values())
    papers = f"up to {PAPERS_MAPPER_SECONDS:.0f} s"
    verdict = within(PAPERS_MAPPER_SECONDS, longest)
    return ["search, CPU seconds", papers, f"up to {longest:.1f} s", verdict]


def gain_row(model: str, num_gpus: int, batch: Batch, result: Comparison) -> list[object]:
    """Cells: seconds of a step by rule and of the plan, and the plan's gain over the first rule."""
    best, share = result.best.step_seconds, gain(result)
    return [
        model,
        num_gpus,
        batch.tokens,
        *(result.baselines.get(name) for name in RULES_COMPARED),
        best if isfinite(best) else None,
        None if share is None else f"+{share:.0%}",
    ]


def gain(result: Comparison) -> float | None:
    """Speed-up of the plan over the heuristic, minus 1. None: the heuristic's plan does not fit."""
    by_rule = result.baselines.get(MEGATRON)
    return None if by_rule is None else by_rule / result.best.step_seconds - 1


def gain_finding(batch: Batch, gains: Sequence[float]) -> list[object]:
    """Row: ReaL's average gain, ours, the verdict."""
    papers, ours = PAPERS_GAIN[batch], mean(gains)
    shown = f"+{ours:.0%} (+{min(gains):.0%} to +{max(gains):.0%})"
    name = f"plan against heuristic, {batch.tokens} tokens"
    return [name, f"+{papers:.0%}", shown, same_share(papers, ours)]
