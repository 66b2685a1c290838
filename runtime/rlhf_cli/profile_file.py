"""Write a profile's file, and summarize it as text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import EACCES, EISDIR, ENOTDIR
from pathlib import Path

from rlhf_cli.atomic_file import write_atomically
from rlhf_planner.problem.profile import ModelProfile, Profile
from rlhf_runtime.errors import FolderUnusable


def require_writable(path: Path) -> None:
    """Check that a file can be written, before the measurement; nothing is created.

    Raises:
        FolderUnusable: it cannot.
    """
    folder = path.parent
    # Missing folders are created later, so the nearest existing one counts.
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if path.is_dir():
        raise _unusable(path, os.strerror(EISDIR))
    if not folder.is_dir():
        raise _unusable(path, os.strerror(ENOTDIR))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unusable(path, os.strerror(EACCES))


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        FolderUnusable: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _unusable(path: Path, problem: str) -> FolderUnusable:
    return FolderUnusable(
        f"the profile cannot be written: got {path} ({problem}), allowed a file in a "
        "folder that this user can write; choose another with -o"
    )


def summary(profile: Profile) -> Iterator[str]:
    """Yield the measured times, a line for each model and block."""
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
        batch = sequences.at[-1]
        yield (
            f"  a block, a decoded token of {batch:g} sequences: "
            f"{1000 * sequences(batch):.3g} ms; the rest of that step "
            f"{1000 * generation.step(batch):.3g} ms"
        )
