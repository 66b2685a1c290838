"""bench-peers: the same jobs under TRL's GRPOTrainer and under ours, side by side.

sort:  example 01 from a warm-started model: 64 prompts x 8, answers of 7 tokens. Same model,
       prompts, learning rate, steps. Ours at world size 1 and 2. Target: at most 0.9 of TRL's step,
       as accurate.
long:  the builtin model at random, whose responses end with probability 1/64 per token: 16 prompts
       x 8, up to 256 tokens. Target: at most half of TRL's step.

TRL has an environment of its own, .venv-trl, which this program creates with uv. Runs alternate
over several rounds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from command_line import make_parser, parse
from outcome import print_json
from peer_runs import Scenario, make_trl_environment, measure, report

SCENARIOS = {
    "sort": Scenario(
        name="sort",
        task="sort",
        model=None,
        warm=True,
        prompts=64,
        max_new_tokens=8,
        learning_rate=2e-4,
        entrypoint="rlhf_runtime.rewards.exact_match:score",
        steps=150,
        quick_steps=20,
        target=0.9,
        devices=(1, 2),
    ),
    "long": Scenario(
        name="long",
        task="digits",
        model=None,
        prompts=16,
        max_new_tokens=256,
        learning_rate=1e-6,
        entrypoint="digit_reward:score",
        steps=20,
        quick_steps=6,
        target=0.5,
        devices=(1,),
    ),
}


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    names = sorted(SCENARIOS, reverse=True)
    parser.add_argument("--scenarios", choices=names, nargs="+", default=names)
    parser.add_argument("--rounds", type=int, default=2, help="runs per system (default 2)")
    parser.add_argument("--quick", action="store_true", help="few steps, one round")
    parser.add_argument("--output", type=Path, help="keep runs and logs here (default: nowhere)")
    parser.add_argument(
        "--without-trl", action="store_true", help="only ours, without ratios; with --smallest"
    )
    options = parse(parser, rounds=1, scenarios=["long"])
    if options.without_trl and not options.smallest:
        parser.error("--without-trl: got it without --smallest: peers are what is measured")
    if options.without_trl:
        print("TRL is left out: --without-trl")
    python = None if options.without_trl else make_trl_environment()
    summary = {}
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as temporary:
        scratch = (options.output or Path(temporary)).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        for name in options.scenarios:
            scenario = SCENARIOS[name].smallest if options.smallest else SCENARIOS[name]
            steps = scenario.quick_steps if options.quick else scenario.steps
            rounds = 1 if options.quick else options.rounds
            try:
                measured = measure(scenario, python, steps, rounds, scratch)
            except RuntimeError as error:
                sys.exit(f"bench-peers: {error}")
            summary[name] = report(scenario, steps, measured, options.smallest)
    print_json(
        "peers",
        smallest=options.smallest,
        without_trl=options.without_trl,
        scenarios=summary,
    )


if __name__ == "__main__":
    main()
