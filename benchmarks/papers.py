"""What HybridFlow and ReaL report of plans, beside what the planner finds (`make bench-papers`).

Nothing is run: all seconds are the time model's, from data sheets and published shares of them
(rlhf_flow/planning/seconds). No constant was fitted to what is compared here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from outcome import print_json, print_table
from papers_generation import generation_rows
from papers_job import MODELS
from papers_verdict import RULES

FINDING = ("finding", "paper", "here", "")


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=f"make bench-papers. {__doc__}")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    print(f"A100-80G, 8 on a node with 200 Gbit/s to others. {RULES}")
    findings = print_generation(options.models)
    words = [str(row[-1]) for row in findings]
    print_json("papers", findings={word: words.count(word) for word in sorted(set(words))})


def print_generation(models: Sequence[str]) -> list[list[object]]:
    """HybridFlow, figure 15."""
    rows, findings = generation_rows(models)
    print("\n1. Generation on 16 GPUs with engines of t, trained 1-8-2 (HybridFlow, figure 15)")
    print_table(["model", "t", "s", "against t = 8", "transition s", "cache GB"], rows)
    print_findings(findings)
    return findings


def print_findings(findings: Sequence[Sequence[object]]) -> None:
    """What the paper found beside ours."""
    print()
    print_table(FINDING, findings)


if __name__ == "__main__":
    main()
