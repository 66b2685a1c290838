"""Compare published results of HybridFlow and ReaL with the planner's (`make bench-papers`).

Nothing is run: all seconds are the time model's, from data sheets and published shares of them
(rlhf_planner/cost). No constant was fitted to the results that are compared here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from command_line import make_parser, parse
from outcome import note, print_json, print_table
from papers_generation import generation_rows
from papers_job import LONG, MODELS, SHORT
from papers_placements import (
    COLOCATED,
    GPUS,
    KINDS,
    SPLIT,
    Comparison,
    compare,
    meshes_text,
    placement_findings,
    placement_row,
)
from papers_search import (
    GAIN_GPUS,
    RULES_COMPARED,
    gain,
    gain_finding,
    gain_row,
    mapper_finding,
    mapper_rows,
)
from papers_transitions import transition_rows
from papers_verdict import RULES

Findings = list[list[object]]


def main() -> None:
    """Print the tables for the selected models and numbers of GPUs."""
    parser = make_parser(f"make bench-papers. {__doc__}")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, choices=GPUS, default=list(GPUS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parse(parser, models=["7B"], gpus=[16], kinds=[COLOCATED, SPLIT])
    print(f"PPO on A100-80G, 8 on a node with 200 Gbit/s to others.\n{RULES}")
    findings = print_generation(options.models)
    comparisons = compare_all(options.models, options.gpus, options.kinds)
    findings += print_placements(comparisons)
    findings += print_transitions(options.models)
    findings += print_mapper(comparisons)
    findings += print_gains(options.models, comparisons)
    print("\nFindings")
    print_table(["", "paper", "here", ""], findings)
    # The last cell of a finding is its verdict.
    verdicts = Counter(str(row[-1]) for row in findings)
    print_json("papers", smallest=options.smallest, findings=dict(sorted(verdicts.items())))


def print_generation(models: Sequence[str]) -> Findings:
    """Print generation by engine size: HybridFlow, figure 15."""
    rows, findings = generation_rows(models)
    print("\n1. Generation on 16 GPUs with engines of t, trained 1-8-2 (HybridFlow, figure 15)")
    print_table(["model", "t", "s", "against t = 8", "transition s", "cache GB"], rows)
    return findings


def compare_all(
    models: Sequence[str], numbers: Sequence[int], kinds: Sequence[str]
) -> dict[tuple[str, int], Comparison]:
    """Search placements of HybridFlow's job; returns them by model and number of GPUs."""
    comparisons = {}
    for model in models:
        for num_gpus in numbers:
            note(f"placements of {model} on {num_gpus} GPUs")
            comparisons[model, num_gpus] = compare(model, num_gpus, kinds=kinds)
    return comparisons


def print_placements(comparisons: dict[tuple[str, int], Comparison]) -> Findings:
    """Print step times by placement: HybridFlow, figure 12."""
    print(
        "\n2. Seconds of a step by placement: the fastest plan of a search, and with cuts by rule,"
    )
    print("   the smallest that fits; the plan, and its gap to the bound (HybridFlow, figure 12)")
    kinds = [*KINDS, *(f"{kind} (rule)" for kind in KINDS)]
    header = ["model", "GPUs", *kinds, "planned", "gap", "wins", "wins (rule)", "paper"]
    print_table(header, [placement_row(*job, result) for job, result in comparisons.items()])
    print("\n   Where the planned roles are")
    print_table(
        ["model", "GPUs", "ranks"],
        [[*job, meshes_text(result.best)] for job, result in comparisons.items()],
    )
    return [
        finding
        for job, result in comparisons.items()
        for finding in placement_findings(*job, result)
    ]


def print_transitions(models: Sequence[str]) -> Findings:
    """Print transitions of three systems: HybridFlow, figure 14."""
    rows, findings = transition_rows(models)
    print(
        "\n3. From training to generation: DeepSpeed-Chat (D), HybridFlow-V (V) and HybridFlow (H):"
    )
    print(
        "   GB that a GPU receives, seconds, and how much less time H takes (HybridFlow, figure 14)"
    )
    header = ["model", "p-t", "GPUs", "D GB", "V GB", "H GB", "D s", "V s", "H s", "to D", "to V"]
    print_table(header, rows)
    return findings


def print_mapper(comparisons: dict[tuple[str, int], Comparison]) -> Findings:
    """Print the cost of the search: HybridFlow, figure 16."""
    print("\n4. CPU seconds of a search, by GPUs (HybridFlow, figure 16)")
    numbers = sorted({num_gpus for _, num_gpus in comparisons})
    print_table(["model", *map(str, numbers)], mapper_rows(comparisons))
    return [mapper_finding(comparisons)]


def print_gains(models: Sequence[str], comparisons: dict[tuple[str, int], Comparison]) -> Findings:
    """Print the plan's gain over heuristics: ReaL."""
    rows, findings = [], []
    for batch in (SHORT, LONG):
        gains = []
        for model in models:
            num_gpus = GAIN_GPUS[model]
            # Table 2 has searched the same job where it has this number of GPUs.
            result = comparisons.get((model, num_gpus)) if batch is SHORT else None
            if result is None:
                note(f"{model} on {num_gpus} GPUs, responses of {batch.response_tokens} tokens")
                # Only the best plan and the rules are shown.
                result = compare(model, num_gpus, batch, kinds=())
            rows.append(gain_row(model, num_gpus, batch, result))
            share = gain(result)
            gains += [] if share is None else [share]
        findings += [gain_finding(batch, gains)] if gains else []
    print(
        "\n5. Seconds of a step by others' rules and as planned, and what the plan gains over the"
    )
    print("   Megatron heuristic (ReaL)")
    print_table(["model", "GPUs", "sequence", *RULES_COMPARED, "planned", "gain"], rows)
    return findings


if __name__ == "__main__":
    main()
