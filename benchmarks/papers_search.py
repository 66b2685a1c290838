"""What the search for a plan costs, beside HybridFlow's figure 16, and what it gains over a
Megatron heuristic, beside ReaL; and what ReaL's own rule and HybridFlow's mapper choose.

The heuristic: one cut for all calls of all roles on all GPUs, the smallest that fits
(rlhf_planner/baselines).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import mean

from papers_job import LONG, SHORT, Batch
from papers_placements import Compared
from papers_verdict import same_share, within

from rlhf_planner.baselines.all import HYBRIDFLOW, MEGATRON, REAL

PAPERS_MAPPER_SECONDS = 1800.0
"""Source: HybridFlow, section 8.5: at most half an hour."""
RULES_COMPARED = (MEGATRON, REAL, HYBRIDFLOW)
GAIN_GPUS = {"7B": 16, "13B": 32, "34B": 64, "70B": 128}
"""On which the heuristic is compared: as many more as the model is larger, as ReaL does."""
PAPERS_GAIN: Mapping[Batch, float] = {SHORT: 0.26, LONG: 0.81}
"""Source: ReaL (arXiv 2406.14088), averages over a Megatron-style heuristic: of its first version,
and of its last with long contexts. Its GPUs are H100, its batches others."""


def mapper_rows(made: Mapping[tuple[str, int], Compared]) -> list[list[object]]:
    """CPU seconds of the planner, by model and GPUs."""
    numbers = sorted({num_gpus for _, num_gpus in made})
    return [
        [
            model,
            *(made[model, n].cpu_seconds if (model, n) in made else None for n in numbers),
        ]
        for model in dict.fromkeys(model for model, _ in made)
    ]


def mapper_finding(made: Mapping[tuple[str, int], Compared]) -> list[object]:
    """The most of them, beside the paper's."""
    longest = max(each.cpu_seconds for each in made.values())
    papers = f"up to {PAPERS_MAPPER_SECONDS:.0f} s"
    verdict = within(PAPERS_MAPPER_SECONDS, longest)
    return ["search, CPU seconds", papers, f"up to {longest:.1f} s", verdict]


def gain_row(model: str, num_gpus: int, batch: Batch, each: Compared) -> list[object]:
    """Seconds of the rules, those as planned, and what that gains over the first."""
    best, gained = each.best.step_seconds, gain(each)
    return [
        model,
        num_gpus,
        batch.tokens,
        *(each.baselines.get(name) for name in RULES_COMPARED),
        best if isfinite(best) else None,
        None if gained is None else f"+{gained:.0%}",
    ]


def gain(each: Compared) -> float | None:
    """How much faster the planner's plan is than the heuristic's. None: that does not fit."""
    by_rule = each.baselines.get(MEGATRON)
    return None if by_rule is None else by_rule / each.best.step_seconds - 1


def gain_finding(batch: Batch, gains: Sequence[float]) -> list[object]:
    """The average gain, beside ReaL's."""
    papers, ours = PAPERS_GAIN[batch], mean(gains)
    shown = f"+{ours:.0%} (+{min(gains):.0%} to +{max(gains):.0%})"
    name = f"plan against heuristic, {batch.tokens} tokens"
    return [name, f"+{papers:.0%}", shown, same_share(papers, ours)]
