"""Generation by the size of engines, beside HybridFlow's figure 15.

All roles share 16 GPUs and are trained 1-8-2. An engine spans t GPUs; the KV cache takes the
remaining memory. The compared time is that of the call that generates, without the transition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from papers_job import paper_hardware, paper_problem
from papers_verdict import same_choice, same_share

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.placement import PlacementSpec, PlacementType
from rlhf_flow.errors import DoesNotFit
from rlhf_planner.evaluate import evaluate
from rlhf_planner.feasibility import first_feasible
from rlhf_planner.plan_builder import build_plan

NUM_GPUS, TRAINING_TENSOR = 16, 8
TENSORS = (1, 2, 4, 8)
BEST_TENSOR = {"7B": 2, "13B": 4}
REDUCTION = {"7B": 0.603, "13B": 0.364}
"""Share of time saved by the best size against engines of 8.
Source: HybridFlow (arXiv 2409.19256), section 8.4."""


@dataclass(frozen=True)
class Generation:
    """Cost of generation with engines of one size."""

    seconds: float
    """Time of the call that generates."""
    transition_seconds: float
    """Time of the weight transfer before the call."""
    cache_bytes: int
    """Size of the KV cache on every GPU."""


def generation(model: str, tensor: int) -> Generation | None:
    """Plan with engines of `tensor` GPUs. None: weights and a cache for one sequence do not fit."""
    problem = paper_problem(model, NUM_GPUS)
    # The figure varies the engines only: training stays 1-8-2, and all roles share the GPUs.
    models = {
        role: replace(facts, fixed=replace(facts.fixed, tensor=TRAINING_TENSOR, pipeline=1))
        for role, facts in problem.models.items()
    }
    placement = PlacementSpec(type=PlacementType.COLOCATED)
    fixed = replace(problem.fixed, placement=placement, engine_tensor=tensor)
    problem = replace(problem, models=models, fixed=fixed)
    try:
        plan = build_plan(first_feasible(problem))
    except DoesNotFit:
        return None
    seconds = evaluate(problem, plan, {"pool": paper_hardware()}).calls
    by_kind = {
        call.kind: seconds[call.call].total
        for call in plan.calls
        if call.graph is GraphName.STEP and call.role == "actor" and call.call in seconds
    }
    engines = plan.generation("actor")
    assert engines is not None
    return Generation(by_kind[CallKind.GENERATE], by_kind[CallKind.RESHARD], engines.kv_cache_bytes)


def generation_rows(models: Sequence[str]) -> tuple[list[list[object]], list[list[object]]]:
    """Rows by model and engine size; findings by model: the paper's result, ours, the verdict."""
    rows: list[list[object]] = []
    findings: list[list[object]] = []
    # The paper names the best size for these models only.
    for model in (model for model in models if model in BEST_TENSOR):
        results = {tensor: generation(model, tensor) for tensor in TENSORS}
        seconds = {tensor: r.seconds for tensor, r in results.items() if r is not None}
        for tensor, result in results.items():
            rows.append([model, tensor, *_cells(result, seconds[TRAINING_TENSOR])])
        best = min(seconds, key=lambda tensor: seconds[tensor])
        reduction = 1 - seconds[best] / seconds[TRAINING_TENSOR]
        papers = BEST_TENSOR[model]
        findings += [
            [f"{model}: best t", papers, best, same_choice(papers, seconds)],
            [
                f"{model}: less time than with t = 8",
                f"{REDUCTION[model]:.1%}",
                f"{reduction:.1%}",
                same_share(REDUCTION[model], reduction),
            ],
        ]
    return rows, findings


def _cells(result: Generation | None, baseline_seconds: float) -> list[object]:
    if result is None:
        return ["-", "-", "-", "-"]
    return [
        result.seconds,
        f"{result.seconds / baseline_seconds - 1:+.1%}",
        result.transition_seconds,
        f"{result.cache_bytes / 1e9:.1f}",
    ]
