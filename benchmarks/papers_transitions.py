"""Weights from training to generation under three schemes, beside HybridFlow's figure 14.

    DeepSpeed-Chat   all N ranks gather all of the model
    HybridFlow-V     the p t ranks of each replica gather all of it
    HybridFlow       every rank receives the missing slices of its part, in groups that reuse as
                     much as possible; the runtime does the same

The first two are one all-gather by the time model; the third is the planner's own reshard. The host
takes all three the same time for each tensor. Training is p-t-d, generation 1 x t_g.

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
from rlhf_planner.cost.transfers import MOVED_TENSOR_SECONDS, reshard_seconds, reshard_traffic
from rlhf_planner.memory.engine_groups import TrainedModel, engine_meshes
from rlhf_sizing.weights import all_weights

NUMBER_BYTES = 2
TENSOR = 8
STAGES: Mapping[str, int] = {"7B": 1, "13B": 1, "34B": 4, "70B": 8}
ENGINE_TENSOR: Mapping[str, int] = {"7B": 2, "13B": 4, "34B": 8, "70B": 8}
"""Engine size by model, in figure 14."""
GPUS = (8, 16, 32, 64, 128)
# The paper does not say which of the models and numbers of GPUs are in the average.
PAPERS_MEAN = 0.552
"""Average share of time saved against the baselines."""
# Section 8.4 has 89.1 %, but against OpenRLHF, which keeps two copies of the actor.
PAPERS_LARGEST = 0.712
"""Largest share of time saved against DeepSpeed-Chat, at 70B (section 8.2)."""


@dataclass(frozen=True)
class Transition:
    """Cost of a scheme."""

    received_bytes: float
    """Bytes on the busiest rank."""
    seconds: float


def transitions(model: str, num_gpus: int) -> tuple[Transition, Transition, Transition]:
    """Costs of DeepSpeed-Chat, HybridFlow-V and HybridFlow, in this order."""
    links = Links(paper_hardware(), GPUS_PER_NODE)
    copy = TENSOR * STAGES[model]
    return (
        _gathered(model, num_gpus, links),
        _gathered(model, copy, links),
        _resharded(model, num_gpus, links),
    )


def _gathered(model: str, ranks: int, links: Links) -> Transition:
    size = float(MODELS[model].num_parameters * NUMBER_BYTES)
    tensors = sum(weights.number for weights in all_weights(MODELS[model]))
    seconds = links.all_gather_seconds(size, links.group(0, ranks, 1))
    seconds += tensors * MOVED_TENSOR_SECONDS
    # A rank has its own slice already.
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
    """Rows by model and number of GPUs; findings: the paper's result, ours, the verdict."""
    rows: list[list[object]] = []
    reductions: dict[str, list[float]] = {}
    for model in models:
        # A replica of the model needs all of its tensor ranks and stages.
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
                    *(scheme.received_bytes / 1e9 for scheme in schemes),
                    *(scheme.seconds for scheme in schemes),
                    f"{1 - ours.seconds / gathering.seconds:.1%}",
                    f"{1 - ours.seconds / replicas.seconds:.1%}",
                ]
            )
    return rows, _findings(reductions)


def _findings(reductions: Mapping[str, Sequence[float]]) -> list[list[object]]:
    average = mean([share for shares in reductions.values() for share in shares])
    results = [("transition: less time than DeepSpeed-Chat, average", PAPERS_MEAN, average)]
    if "70B" in reductions:
        name = "transition: the same at 70B, at most"
        results.append((name, PAPERS_LARGEST, max(reductions["70B"])))
    return [
        [name, f"{papers:.1%}", f"{ours:.1%}", same_share(papers, ours)]
        for name, papers, ours in results
    ]
