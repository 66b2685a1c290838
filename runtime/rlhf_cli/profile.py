"""`rlhf profile`: measures the layers of a job's models on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from errno import EACCES, EISDIR, ENOTDIR
from pathlib import Path

import typer

from rlhf_api.spec.job import RLHFJob
from rlhf_cli.local_jobs import local_jobs
from rlhf_cli.user_code import user_code
from rlhf_cli.validate import STDIN, lines_of, only_job
from rlhf_planner.plan import local_pools
from rlhf_planner.problem.devices import device_of
from rlhf_planner.problem.profile import ModelProfile, Profile, default_place
from rlhf_runtime.errors import FolderUnusable
from rlhf_runtime.profiling.job_subjects import job_subjects
from rlhf_runtime.profiling.ranks import measure

UNNAMED = Path("job.yaml")
"""What a manifest from standard input is taken to be called."""


def profile_command(
    file: Path, devices: int | None, output: Path | None, overrides: Sequence[str] = ()
) -> None:
    """Measure, write the profile, and say where it is; on stderr what is being done.

    Args:
        file: the manifest; `-` is standard input.
        devices: ranks that compute at the same time. None: as many as a run would take.
        output: the profile's file. None: beside the manifest.
        overrides: PATH=VALUE texts of --set.

    Raises:
        ManifestError: the file has problems.
        FlowError: a custom algorithm that cannot be traced.
        PlanError: models whose dimensions nobody knows, or devices that are not there.
        ModelNotFound: a model that is not on this machine.
        FolderUnusable: the profile cannot be put there.
        ProfilingFailed: a model could not be measured.
    """
    job = only_job(local_jobs(file, overrides), file)
    place = output or default_place(UNNAMED if file == STDIN else file)
    require_writable(place)
    profile = _measured(job, file, devices, overrides)
    replace_text(place, profile.to_json())
    for line in summary(profile):
        typer.echo(line)
    typer.echo(f"wrote {place}")


def _measured(job: RLHFJob, file: Path, devices: int | None, overrides: Sequence[str]) -> Profile:
    with (
        lines_of(file, job, overrides),
        user_code(job),
        tempfile.TemporaryDirectory(prefix="rlhf-profile-models-") as folder,
    ):
        pools = local_pools(job, devices)
        device = device_of(pools)
        subjects = job_subjects(job, device, Path(folder))
        ranks = sum(pool.num_devices for pool in pools)
        return measure(subjects, device, ranks, lambda text: typer.echo(text, err=True))


def require_writable(place: Path) -> None:
    """Check that a file can be made, before that which takes long; nothing is made yet.

    Raises:
        FolderUnusable: it cannot.
    """
    folder = place.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if place.is_dir():
        raise _unusable(place, os.strerror(EISDIR))
    if not folder.is_dir():
        raise _unusable(place, os.strerror(ENOTDIR))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unusable(place, os.strerror(EACCES))


def replace_text(place: Path, text: str) -> None:
    """Write a file as a whole: whoever reads it finds what was there before, or all of this.

    Raises:
        FolderUnusable: it cannot be written.
    """
    unfinished: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
        unfinished = Path(name)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        unfinished.chmod(0o644)
        unfinished.replace(place)
    except OSError as error:
        raise _unusable(place, error.strerror or str(error)) from error
    finally:
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)


def _unusable(place: Path, problem: str) -> FolderUnusable:
    return FolderUnusable(
        f"the profile cannot be written: got {place} ({problem}), allowed a file in a "
        "folder that this user can write; choose another with -o"
    )


def summary(profile: Profile) -> Iterator[str]:
    """What was measured, for people."""
    measured = profile.measured
    bandwidth = profile.constants.memory_bytes_per_second / 1e9
    yield (
        f"{measured.name}: {measured.ranks} x {measured.threads} threads, torch {measured.torch}, "
        f"memory {bandwidth:.3g} GB/s"
    )
    for model in profile.models:
        yield f"{model.name}: {model.shape}, {model.precision}, tensor {model.tensor}"
        yield from _model_lines(model)


def _model_lines(model: ModelProfile) -> Iterator[str]:
    training, generation = model.training, model.generation
    if training is not None:
        forward, backward = training.forward.block.tokens, training.backward.block.tokens
        tokens = forward.at[-1]
        yield (
            f"  a block, {tokens:g} tokens: forward {1000 * forward(tokens):.3g} ms, training "
            f"{1000 * (forward(tokens) + backward(tokens)):.3g} ms"
        )
    if generation is not None:
        sequences = generation.sequences
        most = sequences.at[-1]
        yield (
            f"  a block, a decoded token of {most:g} sequences: {1000 * sequences(most):.3g} ms; "
            f"the rest of that step {1000 * generation.step(most):.3g} ms"
        )
