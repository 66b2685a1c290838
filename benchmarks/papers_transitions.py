"""Weights from training to generation under three schemes, beside HybridFlow's figure 14.

    DeepSpeed-Chat   all N ranks gather all of the model
    HybridFlow-V     the p t ranks of each replica gather all of it
    HybridFlow       every rank gets what it lacks of its part, in groups that keep most; as the
                     runtime does it

The first two are one all-gather by the time model; the third is the planner's own reshard. Training
is p-t-d, generation 1 x t_g.

Source: HybridFlow (arXiv 2409.19256), table 2 and section 8.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from papers_job import GPUS_PER_NODE, MODELS, paper_hardware
from papers_verdict import same_share

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import TrainingEngineType
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.transfers import reshard_seconds, reshard_traffic
from rlhf_planner.memory.engine_groups import TrainedModel, engine_meshes

NUMBER_BYTES = 2
TENSOR = 8
STAGES: Mapping[str, int] = {"7B": 1, "13B": 1, "34B": 4, "70B": 8}
ENGINE_TENSOR: Mapping[str, int] = {"7B": 2, "13B": 4, "34B": 8, "70B": 8}
"""Of figure 14."""
GPUS = (8, 16, 32, 64, 128)
PAPERS_MEAN = 0.552
"""Less time than the baselines, on average of models and numbers of GPUs; which of them are in it
is not said."""
PAPERS_LARGEST = 0.712
"""Than DeepSpeed-Chat, at most, at 70B (section 8.2). The 89.1 % of section 8.4 are against
OpenRLHF, which keeps two copies of the actor."""


@dataclass(frozen=True)
class Transition:
    """A scheme's cost."""

    received_bytes: float
    """By the rank that receives most."""
    seconds: float


def transitions(model: str, num_gpus: int) -> tuple[Transition, Transition, Transition]:
    """Of the three schemes in the order above."""
    links = Links(paper_hardware(), GPUS_PER_NODE)
    size = float(MODELS[model].num_parameters * NUMBER_BYTES)
    copy = TENSOR * STAGES[model]
    return (
        _gathered(size, num_gpus, links),
        _gathered(size, copy, links),
        _resharded(model, num_gpus, links),
    )


def _gathered(size: float, ranks: int, links: Links) -> Transition:
    seconds = links.all_gather_seconds(size, links.group(0, ranks, 1))
    return Transition((ranks - 1) / ranks * size, seconds)


def _resharded(model: str, num_gpus: int, links: Links) -> Transition:
    stages, engine = STAGES[model], TrainingEngineType.MEGATRON
    mesh = Mesh(pool="pool", data=num_gpus // TENSOR // stages, tensor=TENSOR, pipeline=stages)
    trained = TrainedModel(MODELS[model], mesh, NUMBER_BYTES, engine)
    engines = engine_meshes({"actor": trained}, ENGINE_TENSOR[model], GPUS_PER_NODE)["actor"]
    traffic = reshard_traffic(trained, engines, GPUS_PER_NODE)
    received = (traffic.within + traffic.between) * NUMBER_BYTES
    return Transition(received, reshard_seconds(trained, engines, links).total)


def transition_rows(models: Sequence[str]) -> tuple[list[list[object]], list[list[object]]]:
    """Of each model and number of GPUs; and what the paper found beside ours."""
    rows: list[list[object]] = []
    reductions: dict[str, list[float]] = {}
    for model in models:
        for num_gpus in (n for n in GPUS if n % (TENSOR * STAGES[model]) == 0):
            schemes = transitions(model, num_gpus)
            gathering, replicas, ours = schemes
            reductions.setdefault(model, []).append(1 - ours.seconds / gathering.seconds)
            cut = f"{STAGES[model]}-{TENSOR}, t_g {ENGINE_TENSOR[model]}"
            rows.append(
                [
                    model,
                    cut,
                    num_gpus,
                    *(each.received_bytes / 1e9 for each in schemes),
                    *(each.seconds for each in schemes),
                    f"{1 - ours.seconds / gathering.seconds:.1%}",
                    f"{1 - ours.seconds / replicas.seconds:.1%}",
                ]
            )
    return rows, _findings(reductions)


def _findings(reductions: Mapping[str, Sequence[float]]) -> list[list[object]]:
    average = mean([each for of_model in reductions.values() for each in of_model])
    found = [("transition: less time than DeepSpeed-Chat, average", PAPERS_MEAN, average)]
    if "70B" in reductions:
        name = "transition: the same at 70B, at most"
        found.append((name, PAPERS_LARGEST, max(reductions["70B"])))
    return [
        [name, f"{papers:.1%}", f"{ours:.1%}", same_share(papers, ours)]
        for name, papers, ours in found
    ]
