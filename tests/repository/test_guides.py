"""What a guide tells people to write and type works, from top to bottom, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ..heavy_starts import Heavy, count_start
from ..runs.cli import standing_by_for_others
from .tracked_files import ROOT

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN, EXPORT = (re.compile(rf"^\s*rlhf {word}\b", re.MULTILINE) for word in ("run", "export"))
FILE = re.compile(r"# file: (?P<name>[\w.-]+)\n")
# Guides train long enough to learn something; here it is enough that they train.
SMALLER = {
    r"warmStart: \{maxSteps: \d+": "warmStart: {maxSteps: 2",
    r"promptsPerStep: \d{2,}": "promptsPerStep: 16",
    r"miniBatchPrompts: \d{2,}": "miniBatchPrompts: 8",
    r"--steps 3\b": "--steps 2",
}
"""Sizes of the guides' jobs by patterns."""


def in_small(text: str) -> str:
    """Reduce the sizes of jobs in a file or in commands."""
    for pattern, size in SMALLER.items():
        text = re.sub(pattern, size, text)
    return text


def scripted(guide: Path) -> list[tuple[str, str]]:
    """A guide's files, as (name, text), and shell blocks, as ("", commands), in order."""
    found = []
    for block in BLOCK.finditer(guide.read_text(encoding="utf-8")):
        file = FILE.match(block["body"])
        if file is not None:
            found.append((file["name"], in_small(block["body"])))
        elif block["language"] == "bash":
            found.append(("", in_small(block["body"])))
    return found


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Variables by which the guides' runs fork their workers from one process."""
    with standing_by_for_others(tmp_path_factory.mktemp("standby")) as variables:
        yield variables


@pytest.mark.ray
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_works(guide: Path, tmp_path: Path, standby: Mapping[str, str]) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name, text in scripted(guide):
        if name:
            (tmp_path / name).write_text(text, encoding="utf-8")
            continue
        count_start(Heavy.RUN, len(RUN.findall(text)))
        count_start(Heavy.EXPORT, len(EXPORT.findall(text)))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=tmp_path,
            env={**os.environ, **standby, "PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_has_a_run_to_try(guide: Path) -> None:
    assert any(not name and "rlhf run" in text for name, text in scripted(guide))
