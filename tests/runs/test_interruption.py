"""Ctrl-C, SIGTERM and SIGKILL at every stage of a run: it ends soon and leaves nothing behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..waiting import wait_until
from .cli import Command, start
from .manifests import example
from .records import end, step_metrics

pytestmark = pytest.mark.ray

ENDED_SECONDS = 20.0
"""Limit from the signal to the end of the command."""
# The command cannot act on SIGKILL: its processes notice and end themselves.
KILLED_SECONDS = 30.0
"""Limit from SIGKILL to the end of all processes of the command."""

MANY_TOKENS = {
    "rollout": {"maxResponseTokens": 1500, "maxConcurrentSequences": 8},
    "schedule": {"warmStart": None, "promptsPerStep": 16},
}
MANY_UPDATES = {
    "algorithm": {"grpo": {"epochsPerBatch": 64}},
    "schedule": {"warmStart": None, "promptsPerStep": 64, "miniBatchPrompts": 4},
}


@dataclass
class Interrupted:
    """A run that a test may interrupt."""

    command: Command
    folder: Path
    marks: Path
    """Folder in which the verifier leaves a file per scored batch."""

    @property
    def num_scored(self) -> int:
        return len(list(self.marks.glob("scored-*")))


@contextmanager
def running(
    scratch: Path, name: str, change: Mapping[str, Any], devices: int
) -> Iterator[Interrupted]:
    """Start a run; ends its leftovers."""
    folder, marks = scratch / name, scratch / f"{name}-marks"
    marks.mkdir()
    verifier = {
        "entrypoint": "verifiers:leaves_marks",
        "parameters": {"folder": str(marks)},
        "batchSize": 4096,
    }
    manifest = example(
        "01", scratch / f"{name}.yaml", {"rewards": [{"function": verifier}]}, change
    )
    arguments = ["run", manifest, "--output", folder, "--devices", devices]
    command = start(arguments, folder.with_suffix(".log"))
    try:
        yield Interrupted(command, folder, marks)
    finally:
        command.end()


def ray_starts(run: Interrupted) -> None:
    run.command.wait_for_file(run.folder / "metrics.jsonl")


def models_are_built(run: Interrupted) -> None:
    run.command.wait_for_text("phase=libraries")


def tokens_are_generated(run: Interrupted) -> None:
    # 256 held-out prompts, eight at a time, up to 1500 tokens each: many seconds.
    run.command.wait_for_text("phase=models_and_engines")


def policies_are_trained(run: Interrupted) -> None:
    # Held-out prompts and the first step are scored; a thousand updates follow.
    wait_until(
        lambda: run.num_scored >= 2 or run.command.process.poll() is not None,
        300,
        f"two scored batches:\n{run.command.output}",
    )
    assert run.num_scored >= 2, run.command.output


@dataclass(frozen=True)
class Moment:
    """A signal, the kind of run, and the moment of its arrival."""

    arrives: Callable[[Interrupted], None]
    change: Mapping[str, Any]
    devices: int
    signal: signal.Signals = signal.SIGINT
    to_group: bool = True
    """True: as a terminal's Ctrl-C. False: only the command itself gets the signal."""


MOMENTS = {
    "ray-starts": Moment(ray_starts, {}, 1),
    "models-are-built": Moment(models_are_built, {}, 2, signal.SIGTERM, to_group=False),
    "tokens-are-generated": Moment(tokens_are_generated, MANY_TOKENS, 1),
    "policies-are-trained": Moment(policies_are_trained, MANY_UPDATES, 2, to_group=False),
}


@pytest.mark.parametrize(
    "name",
    [  # by day a moment in a step; test_helpers_die.py ends a run in its start
        pytest.param("ray-starts", marks=pytest.mark.nightly),
        pytest.param("models-are-built", marks=pytest.mark.nightly),
        pytest.param("tokens-are-generated", marks=pytest.mark.nightly),
        "policies-are-trained",
    ],
)
def test_an_interrupted_run_ends_soon_and_says_so(scratch: Path, name: str) -> None:
    moment = MOMENTS[name]
    with running(scratch, name, moment.change, moment.devices) as run:
        moment.arrives(run)
        run.command.send(moment.signal, moment.to_group)
        begin = time.monotonic()
        code = run.command.wait(ENDED_SECONDS)
        assert code == 130, run.command.output
        run.command.assert_no_leftovers(ENDED_SECONDS - (time.monotonic() - begin))
        last = end(run.folder)
        assert (last["outcome"], last["reason"]) == ("interrupted", "Interrupted")
        assert not step_metrics(run.folder), "the signal was meant to come earlier"
        report = (run.folder / "report.html").read_text()
        assert "interrupted" in report.lower()
        output = run.command.output
        assert "Traceback" not in output and output.splitlines()[-1] == "interrupted", output


def test_processes_of_a_killed_command_end_by_themselves_even_if_frozen(scratch: Path) -> None:
    with running(scratch, "killed", MANY_UPDATES, 2) as run:
        policies_are_trained(run)
        frozen, *_ = [process for process, name in run.command.processes() if "ray::Rank" in name]
        frozen.suspend()
        run.command.send(signal.SIGKILL)
        assert run.command.wait(ENDED_SECONDS) == -signal.SIGKILL
        run.command.assert_no_leftovers(KILLED_SECONDS)
