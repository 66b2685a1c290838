"""Compare methods to train actor and critic in a step of PPO (`make bench-updates`).

    in turn       one after the other, each over all GPUs
    on halves     at the same time, each over half of the GPUs
    fused         over all GPUs, in pipelines of opposite directions that fill each other's bubbles
    interleaved   in turn or on halves, with stages of one or two chunks of layers

Nothing is run: all seconds are the time model's, for each method's fastest parallelism that fits.
The runtime trains in turn and on halves. The bound is the fastest method if pipelines never idled.

Source: RLHFuse (arXiv 2409.13221), intra-stage fusion; Narayanan et al. (arXiv 2104.04473), section
2.2, for interleaved stages.
"""

from __future__ import annotations

from command_line import make_parser, parse
from outcome import note, print_json, print_table
from papers_job import LONG, MODELS, SHORT
from updates_choices import Comparison, compare

GPUS = (32, 64, 128, 256)
METHODS = ("in turn", "on halves", "fused", "interleaved")


def main() -> None:
    """Print the seconds of each method by job, and the parallelism that they need."""
    parser = make_parser(f"make bench-updates. {__doc__}")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, default=list(GPUS))
    options = parse(parser, models=["7B"], gpus=[16])
    comparisons: dict[tuple[object, ...], Comparison] = {}
    for model in options.models:
        for num_gpus in options.gpus:
            for batch in (SHORT, LONG):
                note(f"{model} on {num_gpus} GPUs, sequences of {batch.tokens} tokens")
                job = (model, num_gpus, batch.tokens)
                comparisons[job] = compare(model, num_gpus, batch)
    job_header = ["model", "GPUs", "sequence"]
    print("\nSeconds of all updates of a step")
    print_table(
        [*job_header, *METHODS, "bound"],
        [
            [
                *job,
                *(None if choice is None else choice.seconds for choice in result[:4]),
                result.bound,
            ]
            for job, result in comparisons.items()
        ],
    )
    saved = {job: _saved(result) for job, result in comparisons.items()}
    print("\nSaved of the better of in turn and on halves")
    print_table(
        [*job_header, "by fusion", "by interleaving"],
        [
            [*job, *(None if share is None else f"{share:.1%}" for share in shares)]
            for job, shares in saved.items()
        ],
    )
    print("\nStages-tensor ranks-replicas of both roles, or of actor and critic")
    print_table(
        [*job_header, *(f"{method}: p-t-d" for method in METHODS)],
        [
            [*job, *(None if choice is None else choice.text for choice in result[:4])]
            for job, result in comparisons.items()
        ],
    )
    largest = {
        method: max((share for share in shares if share is not None), default=None)
        for method, shares in zip(METHODS[2:], zip(*saved.values(), strict=True), strict=True)
    }
    print_json("updates", smallest=options.smallest, most_saved=largest)


def _saved(result: Comparison) -> tuple[float | None, float | None]:
    """Shares of the seconds that fusion and interleaving save; negative if they take longer."""
    fused, interleaved = (
        None if choice is None or result.offered is None else 1 - choice.seconds / result.offered
        for choice in (result.fused, result.interleaved)
    )
    return fused, interleaved


if __name__ == "__main__":
    main()
