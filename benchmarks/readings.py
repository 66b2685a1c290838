"""Compare public readings of times with the planner's figures (`make bench-readings`).

Nothing is run: the figures are the time model's, from data sheets and published shares of them
(rlhf_planner/cost). readings.toml gives each reading's source, and says which parameters of the
model rest on which readings; the others test it.
"""

from __future__ import annotations

from collections.abc import Sequence

from command_line import make_parser, parse
from outcome import print_json, print_table
from readings_data import Kind, Reading, read_readings
from readings_ours import ours

CLOSE, FACTOR, SHARE = 1.25, 1.6, 0.8
"""Most readings should agree within the first ratio, all within the second; and their share."""


def main() -> None:
    """Print the readings of the selected kinds beside ours."""
    parser = make_parser(f"make bench-readings. {__doc__}")
    parser.add_argument("--kinds", nargs="+", choices=list(Kind), default=list(Kind))
    options = parse(parser, kinds=[Kind.DECODE])
    compared = [
        (reading, reading.ratio(ours(reading)))
        for reading in read_readings()
        if reading.kind in options.kinds
    ]
    print(
        "Times that others have published, and ours for the same run. The ratio is that of times:"
    )
    print("above 1 the planner expects more than was measured.\n")
    header = ["reading", "parameter", "theirs", "ours", "unit", "ratio"]
    print_table(header, [_row(reading, ratio) for reading, ratio in compared])
    parts = {
        "all": [ratio for _, ratio in compared],
        "held out": [ratio for reading, ratio in compared if reading.parameter is None],
    }
    print()
    print_table(
        ["part", "readings", f"within {CLOSE:g}", f"within {FACTOR:g}", "widest"],
        [[name, *_summary(ratios)] for name, ratios in parts.items()],
    )
    print("\nNo parameter rests on a reading that is held out. Not explained, and what is known:")
    for reading, ratio in compared:
        if reading.unexplained:
            print(f"- {reading.name} ({ratio:.2f}): {reading.unexplained}")
    print(f"\nAim: {SHARE:.0%} within a ratio of {CLOSE:g}, all within {FACTOR:g}.")
    print_json(
        "readings",
        smallest=options.smallest,
        ratios={reading.name: round(ratio, 3) for reading, ratio in compared},
    )


def _row(reading: Reading, ratio: float) -> list[object]:
    figures = float(reading.figure), ours(reading)
    return [reading.name, reading.parameter, *figures, reading.shown_unit, f"{ratio:.2f}"]


def _summary(ratios: Sequence[float]) -> list[object]:
    apart = [max(ratio, 1 / ratio) for ratio in ratios]
    counts = [sum(ratio <= limit for ratio in apart) for limit in (CLOSE, FACTOR)]
    return [len(apart), *counts, f"{max(apart):.2f}"]


if __name__ == "__main__":
    main()
