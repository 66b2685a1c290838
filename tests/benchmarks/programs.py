"""Benchmarks as programs: runs of the smallest size, and their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..heavy_starts import Heavy, count_start

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# A program named operator would stand before Python's own module.
PROGRAMS = {
    "step": "step",
    "dispatch": "dispatch",
    "conversations": "conversations",
    "learning": "learning",
    "peers": "peers",
    "placement": "placement",
    "startup": "startup",
    "real": "real",
    "recovery": "recovery",
    "operator": "operator_jobs",
    "fleet": "operator_fleet",
    "reshard": "reshard",
    "rank": "rank",
    "estimator": "estimator",
    "papers": "papers",
    "updates": "updates",
    "readings": "readings",
}
"""Programs by target."""
ERROR_LINES = 40
NO_VARIABLES: Mapping[str, str] = {}
NO_STARTS: Mapping[Heavy, int] = {}


@dataclass(frozen=True)
class Printed:
    """Standard output of a benchmark."""

    text: str

    def json(self, benchmark: str) -> dict[str, Any]:
        """Parse the line of JSON of a benchmark in the smallest size."""
        lines = [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]
        (answer,) = (line for line in lines if line["benchmark"] == benchmark)
        assert answer["smallest"] and answer["cores"] >= 1
        return dict(answer)

    def rows(self, *header: str) -> list[list[str]]:
        """Cells of the table whose header begins with `header`."""
        lines = (re.split(r"\s{2,}", line.strip()) for line in self.text.splitlines())
        names = next(cells for cells in lines if tuple(cells[: len(header)]) == header)
        return list(takewhile(lambda cells: len(cells) == len(names), lines))

    def names(self, *header: str) -> list[str]:
        """First cells of the rows of this table."""
        return [name for name, *_ in self.rows(*header)]


def run_smallest(
    name: str,
    *options: str,
    variables: Mapping[str, str] = NO_VARIABLES,
    starts: Mapping[Heavy, int] = NO_STARTS,
) -> Printed:
    """Run a benchmark in its smallest size to its end, as `make bench-NAME` does.

    Args:
        name: the target's, without `bench-`.
        options: besides `--smallest`.
        variables: added to this process's environment.
        starts: heavy processes of the benchmark.
    """
    for kind, number in starts.items():
        count_start(kind, number)
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{PROGRAMS[name]}.py"), "--smallest", *options],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    errors = "\n".join(done.stderr.splitlines()[-ERROR_LINES:])
    assert done.returncode == 0, f"{done.args}: exit code {done.returncode}\n{done.stdout}{errors}"
    assert "says nothing about speed" in done.stdout
    assert not re.search(": (reached|MISSED)", done.stdout), done.stdout
    return Printed(done.stdout)
