"""Placements of roles on 8 to 128 GPUs, beside HybridFlow's figure 12.

The fastest plan of every kind of placement: the search covers parallelism, engines, compute configs
and the GPUs of every set of roles. In these kinds the actor generates where it is trained; the
planner's own plans may generate elsewhere, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from time import process_time

from papers_job import SHORT, Batch, paper_hardware, paper_problem
from papers_verdict import same_choice

from rlhf_api.spec.placement import PlacementType
from rlhf_planner.baselines.all import baselines
from rlhf_planner.candidates.placements import placements
from rlhf_planner.placement.strategy import JobStrategy
from rlhf_planner.search.branch_and_bound import SearchResult, find_plan

GPUS = (8, 16, 32, 64, 96, 128)
MAX_CANDIDATES_OF_KIND, MAX_CANDIDATES = 400, 400
"""Compute configs checked against memory: per kind of placement, and by the planner's search."""
COLOCATED, SPLIT, STANDALONE = (
    kind.value for kind in (PlacementType.COLOCATED, PlacementType.SPLIT, PlacementType.STANDALONE)
)
KINDS = (COLOCATED, SPLIT, STANDALONE)

PAPERS_BEST: Mapping[tuple[str, int], str] = {
    **{(model, number): COLOCATED for model in ("13B", "34B") for number in (16, 32, 64)},
    ("13B", 96): SPLIT,
    ("13B", 128): STANDALONE,
    ("34B", 96): SPLIT,
    ("34B", 128): SPLIT,
}
"""The fastest kind by model and GPUs. Source: HybridFlow (arXiv 2409.19256), section 8.3, which
says nothing about 7B, 70B and 8 GPUs."""


@dataclass(frozen=True)
class Comparison:
    """Step times of a job's placements."""

    kinds: Mapping[str, SearchResult]
    """The best plan by kind; kinds that do not fit are missing."""
    best: SearchResult
    """The best plan of all placements."""
    baselines: Mapping[str, float]
    """Seconds of a step by rule of another system; rules that do not fit are missing."""
    cpu_seconds: float
    """CPU time of the search for `best`, with the plans by rules from which it starts."""

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of a step by kind."""
        return {kind: result.step_seconds for kind, result in self.kinds.items()}

    @property
    def by_rule(self) -> dict[str, float]:
        """Seconds of a step by kind, without a search: the smallest cut that fits, tensor ranks
        before stages, GPUs in proportion to roles' work. Kinds that do not fit are missing."""
        return {kind: self.baselines[kind] for kind in KINDS if kind in self.baselines}


def compare(
    model: str, num_gpus: int, batch: Batch = SHORT, kinds: Sequence[str] = KINDS
) -> Comparison:
    """Search placements of the papers' job.

    Args:
        model: one of `MODELS`.
        num_gpus: a multiple of a node's.
        batch: the step's.
        kinds: searched on their own, besides all placements.
    """
    problem, hardware = paper_problem(model, num_gpus, batch), {"pool": paper_hardware()}
    begin = process_time()
    rules = {rule.alternative.name: rule for rule in baselines(problem, hardware)}
    fitted = {name: rule.job for name, rule in rules.items() if rule.job is not None}
    family = tuple(placements(problem))
    best = find_plan(problem, hardware, family, tuple(fitted.values()), MAX_CANDIDATES)
    cpu_seconds = process_time() - begin
    best_of_kind = {}
    for kind in kinds:
        placements_of_kind = [placement for placement in family if kind_of(placement) == kind]
        # Rules and kinds share names: the rule's plan is the first incumbent.
        incumbents = [fitted[kind]] if kind in fitted else []
        result = find_plan(
            problem, hardware, placements_of_kind, incumbents, MAX_CANDIDATES_OF_KIND
        )
        if result.fitted is not None:
            best_of_kind[kind] = result
    seconds_by_rule = {
        name: seconds
        for name, rule in rules.items()
        if (seconds := rule.alternative.step_seconds) is not None
    }
    return Comparison(best_of_kind, best, seconds_by_rule, cpu_seconds)


def placement_row(model: str, num_gpus: int, result: Comparison) -> list[object]:
    """Cells: seconds of a step by kind, searched and by rule, and of the plan; the winners."""
    best = result.best.step_seconds
    return [
        model,
        num_gpus,
        *(result.seconds.get(kind) for kind in KINDS),
        *(result.by_rule.get(kind) for kind in KINDS),
        # Infinite: no plan fits.
        best if isfinite(best) else None,
        f"{result.best.gap:.0%}" if isfinite(best) else None,
        winner(result.seconds),
        winner(result.by_rule),
        PAPERS_BEST.get((model, num_gpus)),
    ]


def placement_findings(model: str, num_gpus: int, result: Comparison) -> list[list[object]]:
    """Rows: the paper's choice, ours, the verdict. Empty where the paper says nothing."""
    papers = PAPERS_BEST.get((model, num_gpus))
    if papers is None:
        return []
    return [
        [f"{model} on {num_gpus}: {name}", papers, winner(seconds), same_choice(papers, seconds)]
        for name, seconds in (
            ("placement, all searched", result.seconds),
            ("placement, cuts by rule", result.by_rule),
        )
    ]


def winner(seconds: Mapping[str, float]) -> str:
    """The fastest kind."""
    return min(seconds, key=lambda kind: seconds[kind]) if seconds else "none fits"


def kind_of(placement: JobStrategy) -> str | None:
    """The paper's name of a placement. None: it has none."""
    roles = placement.roles
    # The paper's actor generates where it is trained.
    if any(roles[role].devices != own.devices for role, own in placement.engines.items()):
        return None
    sets: dict[int, list[str]] = {}
    for role, strategy in roles.items():
        sets.setdefault(strategy.devices.first_rank, []).append(role)
    if len(sets) == 1:
        return COLOCATED
    if len(sets) == len(roles):
        return STANDALONE
    with_actor = next(roles for roles in sets.values() if "actor" in roles)
    # The paper splits actor and reference from critic and reward model; it has no other split.
    return SPLIT if len(sets) == 2 and sorted(with_actor) == ["actor", "reference"] else None


def meshes_text(result: SearchResult) -> str:
    """Roles by ranks: `generation 0-15, actor reward 0-7, reference critic 8-15`."""
    if result.fitted is None:
        return "nothing fits"
    sets: dict[range, list[str]] = {}
    strategy = result.fitted.strategy
    for role, own in strategy.roles.items():
        sets.setdefault(own.devices.ranks, []).append(role.removesuffix("_model"))
        if role == "actor":
            sets.setdefault(strategy.engines[role].devices.ranks, []).append("generation")
    parts = sorted(sets.items(), key=lambda item: (item[0].start, -len(item[0])))
    return ", ".join(f"{' '.join(roles)} {ranks.start}-{ranks.stop - 1}" for ranks, roles in parts)
