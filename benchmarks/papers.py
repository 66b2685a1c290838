"""What HybridFlow and ReaL report of plans, beside what the planner finds (`make bench-papers`).

Nothing is run: all seconds are the time model's, from data sheets and published shares of them
(rlhf_planner/cost). No constant was fitted to what is compared here.
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
    Compared,
    compared,
    described,
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
    """Print the tables for the models and numbers of GPUs that were asked for."""
    parser = make_parser(f"make bench-papers. {__doc__}")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, choices=GPUS, default=list(GPUS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parse(parser, models=["7B"], gpus=[16], kinds=[COLOCATED, SPLIT])
    print(f"PPO on A100-80G, 8 on a node with 200 Gbit/s to others.\n{RULES}")
    findings = print_generation(options.models)
    made = compare_placements(options.models, options.gpus, options.kinds)
    findings += print_placements(made)
    findings += print_transitions(options.models)
    findings += print_mapper(made)
    findings += print_gains(options.models, made)
    print("\nFindings")
    print_table(["", "paper", "here", ""], findings)
    words = Counter(str(row[-1]) for row in findings)
    print_json("papers", smallest=options.smallest, findings=dict(sorted(words.items())))


def print_generation(models: Sequence[str]) -> Findings:
    """HybridFlow, figure 15."""
    rows, findings = generation_rows(models)
    print("\n1. Generation on 16 GPUs with engines of t, trained 1-8-2 (HybridFlow, figure 15)")
    print_table(["model", "t", "s", "against t = 8", "transition s", "cache GB"], rows)
    return findings


def compare_placements(
    models: Sequence[str], numbers: Sequence[int], kinds: Sequence[str]
) -> dict[tuple[str, int], Compared]:
    """All searches of HybridFlow's job, by model and GPUs."""
    made = {}
    for model in models:
        for num_gpus in numbers:
            note(f"placements of {model} on {num_gpus} GPUs")
            made[model, num_gpus] = compared(model, num_gpus, kinds=kinds)
    return made


def print_placements(made: dict[tuple[str, int], Compared]) -> Findings:
    """HybridFlow, figure 12."""
    print(
        "\n2. Seconds of a step by placement: each as fast as was found, and with cuts by rule, the"
    )
    print(
        "   smallest that fits; as planned, and how much faster one may be (HybridFlow, figure 12)"
    )
    kinds = [*KINDS, *(f"{kind} (rule)" for kind in KINDS)]
    header = ["model", "GPUs", *kinds, "planned", "gap", "wins", "wins (rule)", "paper"]
    print_table(header, [placement_row(*job, each) for job, each in made.items()])
    print("\n   Where the planned roles are")
    print_table(
        ["model", "GPUs", "ranks"], [[*job, described(each.best)] for job, each in made.items()]
    )
    return [finding for job, each in made.items() for finding in placement_findings(*job, each)]


def print_transitions(models: Sequence[str]) -> Findings:
    """HybridFlow, figure 14."""
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


def print_mapper(made: dict[tuple[str, int], Compared]) -> Findings:
    """HybridFlow, figure 16."""
    print("\n4. CPU seconds of a search, by GPUs (HybridFlow, figure 16)")
    numbers = sorted({num_gpus for _, num_gpus in made})
    print_table(["model", *map(str, numbers)], mapper_rows(made))
    return [mapper_finding(made)]


def print_gains(models: Sequence[str], made: dict[tuple[str, int], Compared]) -> Findings:
    """ReaL."""
    rows, findings = [], []
    for batch in (SHORT, LONG):
        gains = []
        for model in models:
            num_gpus = GAIN_GPUS[model]
            each = made.get((model, num_gpus)) if batch is SHORT else None
            if each is None:
                note(f"{model} on {num_gpus} GPUs, responses of {batch.response_tokens} tokens")
                each = compared(model, num_gpus, batch, kinds=())
            rows.append(gain_row(model, num_gpus, batch, each))
            gained = gain(each)
            gains += [] if gained is None else [gained]
        findings += [gain_finding(batch, gains)] if gains else []
    print(
        "\n5. Seconds of a step by others' rules and as planned, and what the plan gains over the"
    )
    print("   Megatron heuristic (ReaL)")
    print_table(["model", "GPUs", "sequence", *RULES_COMPARED, "planned", "gain"], rows)
    return findings


if __name__ == "__main__":
    main()
