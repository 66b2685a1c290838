"""Commands to show after an interruption: to resume the run, or to export its model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rlhf_cli.manifests import STDIN
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.errors import StorageFailed
from rlhf_runtime.telemetry.run_folder import RunFolder


def resume_command(
    file: Path, folder: RunFolder, devices: int | None, changes: Sequence[str]
) -> list[str]:
    """The command that resumes a run.

    Options for one start only are left out. Its paths are absolute; code that is on the Python path
    through the current folder still needs that folder.

    Args:
        file: the manifest.
        folder: the run's.
        devices: the value of --devices, if any.
        changes: PATH=VALUE texts of --set.
    """
    # Absolute: the user may be in another folder by then.
    manifest = str(file) if file == STDIN else str(file.absolute())
    words = ["rlhf", "run", manifest, "--output", str(folder.path.absolute())]
    words += [] if devices is None else ["--devices", str(devices)]
    return [*words, *(word for change in changes for word in ("--set", change))]


@contextmanager
def with_resume_hint(
    command: Sequence[str], folder: RunFolder, store: CheckpointStore
) -> Iterator[None]:
    """Add commands to an interruption if there is a checkpoint.

    Args:
        command: resumes the run.
        folder: of the run.
        store: of its checkpoints.

    Raises:
        KeyboardInterrupt: one came; the text is its argument.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        text = _hint_text(command, folder, store)
        raise KeyboardInterrupt(*filter(None, [text])) from error


def _hint_text(command: Sequence[str], folder: RunFolder, store: CheckpointStore) -> str:
    """The hint; empty without a checkpoint, or if the store cannot be read."""
    try:
        # The newest step with a record: one without was interrupted while it was saved.
        step = next((step for step in store.steps() if store.record(step)), None)
    except StorageFailed:
        return ""
    if step is None:
        return ""
    run = folder.path.absolute()
    model = run.with_name(f"{run.name}-step-{step}")
    return (
        f"to resume from the checkpoint of step {step}:\n"
        f"  {shlex.join(command)}\n"
        "to export its model:\n"
        f"  {shlex.join(['rlhf', 'export', str(run), str(model)])}"
    )
