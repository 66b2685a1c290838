"""Generation by the size of engines, beside HybridFlow's figure 15.

All roles share 16 GPUs and are trained 1-8-2; each engine spans t of them, and the cache takes what
memory is left. What is compared is the time of the call that generates, without the transition.
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
"""Of the best size, against engines of 8. Source: HybridFlow (arXiv 2409.19256), section 8.4."""


@dataclass(frozen=True)
class Generation:
    """With engines of one size."""

    seconds: float
    """Of the call that generates."""
    transition_seconds: float
    """Of its weights before."""
    cache_bytes: int
    """On each GPU."""


def generation(model: str, tensor: int) -> Generation | None:
    """With engines of so many GPUs. None: weights and a cache for one sequence do not fit."""
    problem = paper_problem(model, NUM_GPUS)
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
    found = {
        call.kind: seconds[call.call].total
        for call in plan.calls
        if call.graph is GraphName.STEP and call.role == "actor" and call.call in seconds
    }
    engines = plan.generation("actor")
    assert engines is not None
    return Generation(found[CallKind.GENERATE], found[CallKind.RESHARD], engines.kv_cache_bytes)


def generation_rows(models: Sequence[str]) -> tuple[list[list[object]], list[list[object]]]:
    """Of each model and size of engines; and of each model what the paper found beside ours."""
    rows: list[list[object]] = []
    findings: list[list[object]] = []
    for model in (model for model in models if model in BEST_TENSOR):
        made = {tensor: generation(model, tensor) for tensor in TENSORS}
        found = {tensor: each for tensor, each in made.items() if each is not None}
        seconds = {tensor: each.seconds for tensor, each in found.items()}
        for tensor, each in made.items():
            rows.append([model, tensor, *_cells(each, seconds[TRAINING_TENSOR])])
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


def _cells(each: Generation | None, with_most: float) -> list[object]:
    if each is None:
        return ["-", "-", "-", "-"]
    return [
        each.seconds,
        f"{each.seconds / with_most - 1:+.1%}",
        each.transition_seconds,
        f"{each.cache_bytes / 1e9:.1f}",
    ]
