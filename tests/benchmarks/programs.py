"""The benchmarks as programs: each in its smallest size, and what it prints."""

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
PROGRAMS = {
    "step": "step",
    "dispatch": "dispatch",
    "learning": "learning",
    "peers": "peers",
    "placement": "placement",
    "startup": "startup",
    "recovery": "recovery",
    "operator": "operator_jobs",
    "reshard": "reshard",
    "estimator": "estimator",
    "papers": "papers",
}
"""Each target's program; one named operator would stand before Python's own module."""
ERROR_LINES = 40
NO_VARIABLES: Mapping[str, str] = {}
NO_STARTS: Mapping[Heavy, int] = {}


@dataclass(frozen=True)
class Printed:
    """Standard output of a benchmark."""

    text: str

    def json(self, benchmark: str) -> dict[str, Any]:
        """The line of JSON with this name; of the smallest size."""
        lines = [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]
        (found,) = (line for line in lines if line["benchmark"] == benchmark)
        assert found["smallest"] and found["cores"] >= 1
        return dict(found)

    def rows(self, *header: str) -> list[list[str]]:
        """Cells of the rows of the table whose header begins with these."""
        lines = (re.split(r"\s{2,}", line.strip()) for line in self.text.splitlines())
        names = next(cells for cells in lines if tuple(cells[: len(header)]) == header)
        return list(takewhile(lambda cells: len(cells) == len(names), lines))

    def names(self, *header: str) -> list[str]:
        """The first cells of these rows."""
        return [name for name, *_ in self.rows(*header)]


def run_smallest(
    name: str,
    *options: str,
    variables: Mapping[str, str] = NO_VARIABLES,
    starts: Mapping[Heavy, int] = NO_STARTS,
) -> Printed:
    """Run a benchmark in its smallest size to its end, as `make bench-NAME` does.

    Args:
        name: of the target, without `bench-`.
        options: besides `--smallest`.
        variables: of its environment, besides this process's own.
        starts: heavy processes that it starts.
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
