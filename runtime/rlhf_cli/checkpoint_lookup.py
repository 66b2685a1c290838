"""Find the checkpoint that a folder or address of a step, or of a run, stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlhf_api.spec.checkpoint import KeepBest
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_cli.earlier_run import read_job
from rlhf_runtime.checkpoint.record import RECORD_FILE, CheckpointRecord, best_first
from rlhf_runtime.checkpoint.storage import resolve_storage
from rlhf_runtime.checkpoint.store import (
    Checkpoint,
    CheckpointDamaged,
    CheckpointStore,
    damaged_text,
    is_checkpoint_name,
)
from rlhf_runtime.errors import CannotExport
from rlhf_runtime.telemetry.run_folder import RunFolder


def checkpoint_address(spec: RLHFJobSpec, folder: RunFolder) -> str:
    """The address of a job's checkpoints: the manifest's, else a folder of its run."""
    storage = spec.checkpoint.storage
    uri = storage.uri if storage is not None else None
    return uri or str((folder.path / "checkpoints").resolve())


def find_checkpoint(source: str, say: Callable[[str], None]) -> Checkpoint:
    """Find a checkpoint and verify all its bytes.

    Args:
        source: folder or address of a step's checkpoint, of all checkpoints of a job, or of a run.
            Of several checkpoints the newest complete one is chosen.
        say: prints a line about the choice, and about newer ones that are damaged.

    Raises:
        CannotExport: there is none, or the requested one is damaged.
        StorageFailed: the address cannot be read.
    """
    parent, _, name = source.rstrip("/").rpartition("/")
    # A step that is named is exported or refused, never replaced by another one.
    if is_checkpoint_name(name):
        return _checkpoint_named(_store_at(parent or ".", source), name)
    address = _checkpoints_in(source)
    store = _store_at(address, source)
    checkpoint = store.newest(lambda step, error: say(damaged_text(step, error)))
    if checkpoint is None:
        raise CannotExport(
            f"no complete checkpoint: got {source}, with none in {store.address}; give the folder "
            "of a run, or of a step in its checkpoints"
        )
    say(f"the newest complete checkpoint is of step {checkpoint.record.step}")
    return checkpoint


def find_best_checkpoint(source: str, say: Callable[[str], None]) -> Checkpoint:
    """Find the checkpoint of a job that checkpoint.keepBest calls the best; verify all its bytes.

    Args:
        source: folder or address of all checkpoints of a job, or of a run.
        say: prints a line about the choice, and about better ones that are damaged.

    Raises:
        CannotExport: no intact one has the metric.
        StorageFailed: the address cannot be read.
    """
    name = source.rstrip("/").rpartition("/")[2]
    if is_checkpoint_name(name):
        raise CannotExport(
            f"--best chooses among the checkpoints of a run: got the step {name}, allowed the "
            "folder or address of a run; leave --best out, or name the run"
        )
    store = _store_at(_checkpoints_in(source), source)
    records = list(store.records())
    metric = _best_metric(records[0]) if records else None
    for record in [] if metric is None else best_first(records, metric):
        try:
            checkpoint = store.read(record.step)
        except CheckpointDamaged as error:
            say(damaged_text(record.step, error))
            continue
        assert metric is not None
        value = record.metrics[metric]
        say(f"the best checkpoint is of step {record.step}: {metric} is {value:.5g}")
        return checkpoint
    raise CannotExport(
        f"no checkpoint is the best: got {len(records)} checkpoints in {store.address}, none "
        f"intact and of a step with {metric or 'a metric of checkpoint.keepBest'}, allowed one of "
        "an evaluated step; leave --best out, or set schedule.evaluateEverySteps and "
        "checkpoint.keepBest before the next run"
    )


def _best_metric(record: CheckpointRecord) -> str | None:
    """The metric by which the job of a checkpoint keeps its best; None if by none."""
    return KeepBest(record.spec["checkpoint"]["keepBest"]).metric


def _checkpoint_named(store: CheckpointStore, name: str) -> Checkpoint:
    try:
        return store.read_folder(name)
    except CheckpointDamaged as error:
        others = [str(step) for step in store.steps() if f"step-{step:08d}" != name]
        also = f"steps {', '.join(others)}" if others else "none"
        raise CannotExport(
            f"the checkpoint is damaged or does not exist: got {error}, in {store.address}/{name}; "
            f"choose another one: there are also {also}"
        ) from error


def _checkpoints_in(source: str) -> str:
    """The address of a run's checkpoints; any other folder or address as it is."""
    if "://" in source:
        return source
    folder = RunFolder(Path(source).expanduser())
    if not folder.path.is_dir():
        kind = "a file" if folder.path.exists() else "nothing there"
        raise CannotExport(
            f"no checkpoint: got {source} ({kind}), allowed the folder of a run or of a step's "
            "checkpoint, or its address; correct it"
        )
    # The manifest of a run says where its checkpoints are, be it outside of the folder.
    if (job := read_job(folder)) is not None:
        return checkpoint_address(job.spec, folder)
    # Without a manifest: a run's folder, or the folder of checkpoints itself.
    inside = folder.path / "checkpoints"
    return str((inside if inside.is_dir() else folder.path).resolve())


def _store_at(address: str, source: str) -> CheckpointStore:
    local = "://" not in address
    try:
        return CheckpointStore(str(Path(address).expanduser().resolve()) if local else address)
    except (ValueError, ImportError) as error:  # no such protocol, no package for it
        raise CannotExport(
            f"no such folder or address: got {source} ({error}), allowed a folder or an address "
            "that fsspec can read with the installed packages (for s3:// the extra s3)"
        ) from error


def still_exists(checkpoint: Checkpoint) -> bool:
    """True if a checkpoint has not been deleted since it was read."""
    location = resolve_storage(checkpoint.address)
    try:
        location.fs.info(f"{location.path}/{RECORD_FILE}")
    except FileNotFoundError:
        return False
    except Exception:  # file systems raise errors of their own, which say nothing about the file
        return True
    return True
