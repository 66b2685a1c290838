"""What a person can do with a run that was interrupted: go on, or take the model as it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rlhf_cli.validate import STDIN
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.errors import StorageFailed
from rlhf_runtime.telemetry.run_folder import RunFolder


def same_command(
    file: Path, folder: RunFolder, devices: int | None, changes: Sequence[str]
) -> list[str]:
    """The command that goes on with a run: without what holds for one start only. Its paths mean
    the same from every folder; code that is found through the current one is not among them.

    Args:
        file: the manifest.
        folder: the run's.
        devices: of this machine, where the command line says so.
        changes: fields of the manifest that the command line has set.
    """
    manifest = str(file) if file == STDIN else str(file.absolute())
    words = ["rlhf", "run", manifest, "--output", str(folder.path.absolute())]
    words += [] if devices is None else ["--devices", str(devices)]
    return [*words, *(word for change in changes for word in ("--set", change))]


@contextmanager
def with_resume_hint(
    command: Sequence[str], folder: RunFolder, store: CheckpointStore
) -> Iterator[None]:
    """Let an interruption tell what can be done now, where there is a checkpoint.

    Args:
        command: that goes on.
        folder: of the run.
        store: of its checkpoints.

    Raises:
        KeyboardInterrupt: with the text, where one came.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        text = _text(command, folder, store)
        raise KeyboardInterrupt(*filter(None, [text])) from error


def _text(command: Sequence[str], folder: RunFolder, store: CheckpointStore) -> str:
    """Empty where there is no checkpoint, or nobody knows."""
    try:
        step = next((step for step in store.steps() if store.record(step)), None)
    except StorageFailed:
        return ""
    if step is None:
        return ""
    run = folder.path.absolute()
    model = run.with_name(f"{run.name}-step-{step}")
    return (
        f"to go on from the checkpoint of step {step}:\n"
        f"  {shlex.join(command)}\n"
        "to make a model of it:\n"
        f"  {shlex.join(['rlhf', 'export', str(run), str(model)])}"
    )
