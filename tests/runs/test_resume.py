"""A job that is killed at any moment resumes with exactly the numbers of an undisturbed one."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.checkpoint import EVALUATION_LENGTH
from rlhf_cli.evaluated_model import find_model
from rlhf_cli.export import ExportRequest, export_checkpoint
from rlhf_runtime.checkpoint.store import CheckpointStore

from ..object_store import s3_bucket
from .cli import Command, Finished, run, start
from .exports import assert_exports_own_model, assert_own_model
from .long_jobs import STEPS, manifest_of
from .records import records, without_pace

pytestmark = pytest.mark.ray

MOMENTS = {"start-up": 0, "generate": 2, "score": 3, "train": 4, "transition": 5, "save": 6}
"""Step of the kill in a phase; 0: none."""
KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Address of a bucket."""
    # Checkpoints in a bucket cannot be renamed.
    with s3_bucket() as address:
        yield address


def stored_in(address: str) -> Mapping[str, Any]:
    """Change of a manifest: checkpoints in a storage."""
    return {"checkpoint": {"storage": {"uri": address}}}


def kills(victims: Mapping[str, str]) -> list[str]:
    """Arguments that inject one kill per phase."""
    steps = {phase: f",step={step}" if step else "" for phase, step in MOMENTS.items()}
    return [
        word
        for phase, victim in victims.items()
        for word in ("--inject", f"kill:{victim},phase={phase}{steps[phase]}")
    ]


def numbers(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Metrics by kind and step; of repeated steps the last ones."""
    return {
        (kind, record["step"]): without_pace(record["metrics"])
        for kind in ("warm_start", "evaluation", "step")
        for record in records(folder, kind)
    }


def summary(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return loaded


def samples(folder: Path) -> dict[str, bytes]:
    """The files of samples, by name."""
    return {path.name: path.read_bytes() for path in (folder / "samples").iterdir()}


def assert_same(run: Path, reference: Path) -> None:
    """Compare all numbers that do not depend on pace, samples and all weights."""
    ours, theirs = numbers(run), numbers(reference)
    assert ours.keys() == theirs.keys()
    assert {key: ours[key] for key in ours if ours[key] != theirs[key]} == {}
    assert samples(run) == samples(reference)
    steps, evaluations = (1, 2, 4, 6), (0, 3, 6, 7)
    assert samples(run).keys() == {
        *(f"step-{step:06d}.jsonl" for step in steps),
        *(f"evaluation-{step:06d}.jsonl" for step in evaluations),
    }
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (run, reference)]
    assert weights[0] == weights[1]


def steps_of(ended: Finished) -> list[dict[str, Any]]:
    return list(records(ended.folder, "step"))


def by_turns(*victims: str) -> dict[str, str]:
    """Victims in turns, by phase."""
    return dict(zip(MOMENTS, cycle(victims), strict=False))


@pytest.mark.parametrize(
    ("devices", "victims", "standby"),
    [
        # test_placement.py and test_real_model.py kill ranks that generate and train.
        pytest.param(
            2,
            {"start-up": "rank=0", "score": "rank=1", "transition": "rank=0", "save": "rank=1"},
            True,
            id="ranks-of-two",
        ),
        pytest.param(
            2,
            by_turns("rank=0", "rank=1"),
            True,
            id="ranks-of-two-by-turns",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            2,
            by_turns("rank=1", "rank=0"),
            True,
            id="the-other-ranks-of-two",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            1,
            {"train": "rank=0", "save": "rank=0"},
            False,
            id="the-only-rank-and-nothing-stands-by",
            # test_presets.py kills an only rank, test_helpers_die.py one without standby
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_job_continues_when_a_rank_is_killed(
    request: pytest.FixtureRequest,
    scratch: Path,
    undisturbed: Callable[[int], Finished],
    devices: int,
    victims: Mapping[str, str],
    standby: bool,
) -> None:
    name = f"kills-{request.node.callspec.id}"
    policy = {"failurePolicy": {"standby": standby}}
    manifest = manifest_of(devices, scratch / f"{name}.yaml", policy)
    ended = run(manifest, scratch / name, "--devices", devices, *kills(victims))
    assert ended.code == 0, ended.output
    assert ended.output.count(", after WorkerLost: ") == len(victims), ended.output
    assert summary(ended.folder)["restarts"] == len(victims)
    assert_same(ended.folder, undisturbed(devices).folder)
    # On two ranks sampling is truncated: both engines still normalize over the same tokens.
    mismatches = [record["metrics"]["actor/log_prob_difference_max"] for record in steps_of(ended)]
    assert max(mismatches) < 1e-4


@pytest.mark.parametrize(
    ("devices", "phases", "in_bucket"),
    [
        pytest.param(2, ("start-up", "transition"), False, id="two"),
        pytest.param(
            2,
            ("generate", "score", "train", "save"),
            False,
            id="two-in-the-other-phases",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            1,
            ("train", "save"),
            True,
            id="one-with-its-checkpoints-in-a-bucket",
            marks=pytest.mark.nightly,  # the test below resumes from a bucket
        ),
    ],
)
def test_a_job_resumes_when_its_command_is_repeated(
    scratch: Path,
    undisturbed: Callable[[int], Finished],
    devices: int,
    phases: tuple[str, ...],
    bucket: str,
    in_bucket: bool,
) -> None:
    name = f"kills-driver-of-{devices}-{phases[0]}"
    folder = scratch / name
    changes = [stored_in(f"{bucket}/driver")] if in_bucket else []
    manifest = manifest_of(devices, scratch / f"{name}.yaml", *changes)
    kill_options = kills(dict.fromkeys(phases, "driver"))
    words = ["run", manifest, "--output", folder, "--devices", devices, *kill_options]
    codes = []
    while not codes or (codes[-1] == KILLED and len(codes) <= len(phases)):
        command = start(words, folder.with_suffix(f".{len(codes)}.log"))
        try:
            codes.append(command.wait())
            command.assert_no_leftovers()
        finally:
            command.end()
    assert codes == [KILLED] * len(phases) + [0], command.output
    assert_same(folder, undisturbed(devices).folder)


FAULTS = {
    "hang:rank=1,phase=start-up": ("NoProgress", "rank 1 in build"),
    # The stack says where the rank hangs.
    "hang:rank=1,phase=train,step=2": ("NoProgress", "rank 1 in actor.train, step 2", "faults.py"),
    "hang:reward,phase=score,step=3": ("NoProgress", "reward in reward.score, step 3"),
    "freeze:reward,phase=score,step=4": ("NoProgress", "reward does not answer"),
    "freeze:rank=0,phase=generate,step=5": ("NoProgress", "rank 0 does not answer"),
    "raise:rank=1,phase=transition,step=6": ("WorkerRaised", "ZeroDivisionError"),
    "exhaust:rank=0,phase=transition,step=7": ("OutOfMemory", "rank 0 ran out of memory"),
}
"""Faults, and parts of the notice of their restart."""
USUAL_FAULTS = [
    "hang:rank=1,phase=train,step=2",
    "freeze:reward,phase=score,step=4",
    "exhaust:rank=0,phase=transition,step=7",
]
"""One fault of every kind: a hanging call, a frozen process, an error."""


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(USUAL_FAULTS, id="three"),
        pytest.param(list(FAULTS), id="all", marks=pytest.mark.nightly),
    ],
)
def test_a_worker_that_hangs_freezes_or_raises_is_replaced(
    scratch: Path, undisturbed: Callable[[int], Finished], bucket: str, faults: list[str]
) -> None:
    impatient = {"failurePolicy": {"progressDeadlineSeconds": 10}}
    address = f"{bucket}/hangs-{len(faults)}"
    name = f"hangs-{len(faults)}"
    manifest = manifest_of(2, scratch / f"{name}.yaml", impatient, stored_in(address))
    words = [word for fault in faults for word in ("--inject", fault)]
    ended = run(manifest, scratch / name, "--devices", 2, *words)
    assert ended.code == 0, ended.output
    notices = [line for line in ended.output.splitlines() if " restart " in line]
    for fault, notice in zip(faults, notices, strict=True):
        assert all(part in notice for part in FAULTS[fault]), (fault, notice)
    assert "rank 1, thread MainThread" in (ended.folder / "logs" / "stacks.txt").read_text()
    assert_same(ended.folder, undisturbed(2).folder)
    kept = CheckpointStore(address)
    assert kept.steps()[:2] == [STEPS, STEPS - 1] and len(kept.steps()) <= 3
    assert kept.read(STEPS).record.world_size == 2
    assert not (ended.folder / "checkpoints").exists()


def test_the_newest_checkpoint_exports_the_runs_own_model(
    scratch: Path, undisturbed: Callable[[int], Finished]
) -> None:
    assert_exports_own_model(undisturbed(2).folder, scratch / "from-two-ranks")


def interrupt_politely(command: Command) -> None:
    # As a batch system does, in the middle of training.
    command.wait_for_text("checkpoint step=1")
    command.send(signal.SIGTERM, to_group=True)


def last_step(folder: Path) -> int:
    return max(record["step"] for record in records(folder, "step"))


def test_a_stopped_job_resumes_even_from_the_checkpoint_before_a_damaged_one(
    scratch: Path, undisturbed: Callable[[int], Finished]
) -> None:
    folder, manifest = scratch / "stopped", manifest_of(1, scratch / "stopped.yaml")
    words = ["run", manifest, "--output", folder, "--devices", 1]
    command = start([*words, "--steps", 500], folder.with_suffix(".log"))
    try:
        interrupt_politely(command)
        assert command.wait() == 130, command.output
        command.assert_no_leftovers()
    finally:
        command.end()
    assert "stopping after this step" in command.output
    reached = last_step(folder)
    words = command.output.splitlines()[-4:]
    assert words[0] == f"to resume from the checkpoint of step {reached}:"
    assert words[1] == (
        f"  rlhf run {manifest} --output {folder} --devices 1 --set spec.schedule.steps=500"
    )
    assert words[3] == f"  rlhf export {folder} {folder}-step-{reached}"
    newest = folder / "checkpoints" / f"step-{reached:08d}"
    assert newest.is_dir(), "what was reached is saved"

    fewer = run(manifest, folder, "--devices", 1, "--steps", reached - 1)
    assert fewer.code == 2 and f"allowed at least {reached}" in fewer.output, fewer.output
    refused = run(manifest, folder, "--devices", 1, "--seed", 5)
    assert refused.code == 2 and "CannotResume" in refused.output, refused.output
    assert "spec.schedule.seed" in refused.output and "got 5, allowed 0" in refused.output
    assert last_step(folder) == reached

    file = newest / "local" / "__0_0.distcp"
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    ended = run(manifest, folder, "--devices", 1, "--steps", max(STEPS, reached + 1))
    assert ended.code == 0, ended.output
    assert f"step {reached} cannot be used" in ended.output and file.name in ended.output
    assert f"going on from the checkpoint of step {reached - 1}" in ended.output
    assert f"spec.schedule.steps is {max(STEPS, reached + 1)}, which is in force" in ended.output
    totals = summary(folder)
    assert (totals["starts"], totals["restarts"], totals["steps_repeated"]) == (2, 0, 1)
    assert totals["total_seconds"] > sum(step["seconds"] for step in records(folder, "step"))
    ours, theirs = numbers(folder), numbers(undisturbed(1).folder)
    assert all(ours[key] == theirs[key] for key in theirs if key in ours and key[1] < STEPS)
    assert sum(kind == "step" for kind, _ in ours) == max(STEPS, reached + 1)


@pytest.fixture(scope="module")
def frugal(scratch: Path, ppo: Finished) -> Finished:
    """The long job again from the checkpoint before its last one: with other resources, for more
    steps, until an early stop after one step more."""
    # From the checkpoint before the last one, so that a step runs with both settings.
    folder = scratch / "frugal"
    shutil.copytree(ppo.folder, folder)
    shutil.rmtree(folder / "checkpoints" / f"step-{STEPS:08d}")
    training = {"microBatchTokens": 64, "activationRecompute": True}
    # Steps 0, 3 and 6 are evaluated; the evaluation after the fifth ends training.
    early = {"evaluateEverySteps": 1, "earlyStop": {"patience": 4, "minDelta": 100.0}}
    # The longest responses are not those of the last step.
    kept = {"everySteps": 1, "keepBest": "LengthMean", "finalModel": "Best"}
    changes = {
        "models": {"actor": {"training": training}},
        "rollout": {"kvCacheMemory": "16Mi", "maxConcurrentSequences": 8},
        "schedule": early,
        "checkpoint": kept,
    }
    manifest = manifest_of(1, scratch / "frugal.yaml", changes)
    return run(manifest, folder, "--devices", 1, "--steps", STEPS + 9)


def test_a_finished_job_takes_more_steps_with_settings_that_change_no_number(
    frugal: Finished, ppo: Finished
) -> None:
    folder = frugal.folder
    assert frugal.code == 0, frugal.output
    assert f"going on from the checkpoint of step {STEPS - 1}" in frugal.output
    assert last_step(folder) == STEPS + 1 == summary(folder)["steps"]
    ours, theirs = numbers(folder), numbers(ppo.folder)
    again = ("step", STEPS)
    assert ours[again] != theirs[again], "the step was made again, in other micro-batches"
    for name in ("actor/loss", "critic/loss", "reward/mean"):
        assert ours[again][name] == pytest.approx(theirs[again][name], abs=1e-4), name


def test_a_job_that_no_longer_improves_ends_early_and_is_finished(
    scratch: Path, frugal: Finished
) -> None:
    folder, last = frugal.folder, STEPS + 1
    why = f"training ended early, after step {last} of {{}}: {EVALUATION_LENGTH}"
    this_run, more = why.format(STEPS + 9), why.format(STEPS + 19)
    assert f"notice {this_run}" in frugal.output
    totals = summary(folder)
    assert (totals["outcome"], totals["reason"]) == ("succeeded", "EarlyStop")
    assert totals["message"].startswith(this_run)
    assert [record["step"] for record in records(folder, "evaluation")][-2:] == [STEPS, last]
    store = CheckpointStore(str(folder / "checkpoints"))
    assert [step for step, _ in store.read(last).record.evaluations] == [0, 3, 6, STEPS, last]
    before = (folder / "metrics.jsonl").read_bytes()
    manifest = scratch / "frugal.yaml"
    again = run(manifest, folder, "--devices", 1, "--steps", STEPS + 19)
    assert again.code == 0 and "already finished" in again.output and more in again.output
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_the_model_is_that_of_the_best_checkpoint(scratch: Path, frugal: Finished) -> None:
    kept = CheckpointStore(str(frugal.folder / "checkpoints")).records()
    lengths = {one.step: one.metrics.get(EVALUATION_LENGTH, 0.0) for one in kept}
    best = max(lengths, key=lambda step: (lengths[step], step))
    assert best != STEPS + 1, f"choose another metric: got {lengths}"
    assert f"the model is that of step {best}, with {EVALUATION_LENGTH}" in frugal.output
    assert find_model(str(frugal.folder)).step == best
    exported = scratch / "frugal-best"
    export_checkpoint(ExportRequest(str(frugal.folder), str(exported), best=True))
    assert_own_model(frugal.folder, exported)
