"""Placements of roles on 8 to 128 GPUs, beside HybridFlow's figure 12.

Of each kind of placement the fastest plan that is found: cuts, engines, ways to compute and the
GPUs of each set are searched. In these kinds the actor generates where it is trained; the planner's
own plans may have it generate elsewhere, too.
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
from rlhf_planner.placement.strategy import JobStrategy
from rlhf_planner.search.branch_and_bound import SearchResult, find_plan
from rlhf_planner.strategies.placements import placements

GPUS = (8, 16, 32, 64, 96, 128)
FITTED_OF_KIND, FITTED = 400, 400
"""Ways to compute that are fitted into memory: for each kind of placement, and for the planner."""
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
"""By model and GPUs. Source: HybridFlow (arXiv 2409.19256), section 8.3; nothing is said of 7B and
70B, nor of 8 GPUs."""


@dataclass(frozen=True)
class Compared:
    """The placements of a job."""

    kinds: Mapping[str, SearchResult]
    """The best of each kind; of kinds that fit."""
    best: SearchResult
    """Of all placements."""
    baselines: Mapping[str, float]
    """Seconds of a step by others' rules; of those that fit."""
    cpu_seconds: float
    """That finding the best took, and the plans by rules from which that starts."""

    @property
    def seconds(self) -> dict[str, float]:
        """Of a step by kind."""
        return {kind: found.step_seconds for kind, found in self.kinds.items()}

    @property
    def by_rule(self) -> dict[str, float]:
        """Of a step by kind, with the smallest cut that fits, tensor ranks before stages, and GPUs
        shared out by roles' work; of kinds that fit."""
        return {kind: self.baselines[kind] for kind in KINDS if kind in self.baselines}


def compared(
    model: str, num_gpus: int, batch: Batch = SHORT, kinds: Sequence[str] = KINDS
) -> Compared:
    """The placements of the papers' job.

    Args:
        model: one of `MODELS`.
        num_gpus: a multiple of a node's.
        batch: of a step.
        kinds: of placements that are compared, too.
    """
    problem, hardware = paper_problem(model, num_gpus, batch), {"pool": paper_hardware()}
    begin = process_time()
    rules = {each.alternative.name: each for each in baselines(problem, hardware)}
    fitted = {name: each.job for name, each in rules.items() if each.job is not None}
    family = tuple(placements(problem))
    best = find_plan(problem, hardware, family, tuple(fitted.values()), FITTED)
    cpu_seconds = process_time() - begin
    found = {}
    for kind in kinds:
        calls_of_kind = [each for each in family if kind_of(each) == kind]
        known = [fitted[kind]] if kind in fitted else []
        one = find_plan(problem, hardware, calls_of_kind, known, FITTED_OF_KIND)
        if one.fitted is not None:
            found[kind] = one
    seconds_of = {
        name: seconds
        for name, each in rules.items()
        if (seconds := each.alternative.step_seconds) is not None
    }
    return Compared(found, best, seconds_of, cpu_seconds)


def placement_row(model: str, num_gpus: int, each: Compared) -> list[object]:
    """Seconds of a step by kind, searched and by rule, and as planned; who wins."""
    best = each.best.step_seconds
    return [
        model,
        num_gpus,
        *(each.seconds.get(kind) for kind in KINDS),
        *(each.by_rule.get(kind) for kind in KINDS),
        best if isfinite(best) else None,
        f"{each.best.gap:.0%}" if isfinite(best) else None,
        winner(each.seconds),
        winner(each.by_rule),
        PAPERS_BEST.get((model, num_gpus)),
    ]


def placement_findings(model: str, num_gpus: int, each: Compared) -> list[list[object]]:
    """What the paper found beside ours; nothing where it does not say."""
    papers = PAPERS_BEST.get((model, num_gpus))
    if papers is None:
        return []
    return [
        [f"{model} on {num_gpus}: {what}", papers, winner(seconds), same_choice(papers, seconds)]
        for what, seconds in (
            ("placement, all searched", each.seconds),
            ("placement, cuts by rule", each.by_rule),
        )
    ]


def winner(seconds: Mapping[str, float]) -> str:
    """The kind that takes least."""
    return min(seconds, key=lambda kind: seconds[kind]) if seconds else "none fits"


def kind_of(placement: JobStrategy) -> str | None:
    """The paper's name of a placement. None: it has none."""
    roles = placement.roles
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
    return SPLIT if len(sets) == 2 and sorted(with_actor) == ["actor", "reference"] else None


def described(found: SearchResult) -> str:
    """Who shares GPUs in a plan: `generation 0-15, actor reward 0-7, reference critic 8-15`."""
    if found.fitted is None:
        return "nothing fits"
    sets: dict[range, list[str]] = {}
    strategy = found.fitted.strategy
    for role, own in strategy.roles.items():
        sets.setdefault(own.devices.ranks, []).append(role.removesuffix("_model"))
        if role == "actor":
            sets.setdefault(strategy.engines[role].devices.ranks, []).append("generation")
    parts = sorted(sets.items(), key=lambda each: (each[0].start, -len(each[0])))
    return ", ".join(f"{' '.join(roles)} {ranks.start}-{ranks.stop - 1}" for ranks, roles in parts)
