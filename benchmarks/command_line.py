"""The command line of a benchmark: its own options, and `--smallest`, which all of them have."""

from __future__ import annotations

import argparse
from typing import Any

SMALLEST = (
    "run everything once, as small as possible: shows that the benchmark works, says nothing "
    "about speed; other options keep their meaning"
)


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """Make a parser with a benchmark's description and `--smallest`."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    return parser


def parse(parser: argparse.ArgumentParser, **smallest: Any) -> argparse.Namespace:
    """Read the command line.

    Args:
        parser: from `make_parser`, with the benchmark's own options.
        smallest: defaults of these options under `--smallest`.
    """
    options = parser.parse_args()
    unknown = smallest.keys() - vars(options).keys()
    assert not unknown, f"no such options: {sorted(unknown)}"
    if options.smallest:
        # As defaults, so that options on the command line have precedence.
        parser.set_defaults(**smallest)
        options = parser.parse_args()
    return options
