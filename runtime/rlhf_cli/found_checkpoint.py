"""The checkpoint that a person means by the folder or the address of a step, or of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlhf_api.errors import ManifestError
from rlhf_api.reading.manifest import load_jobs
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.checkpoint.record import RECORD_FILE
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


def place_of_checkpoints(spec: RLHFJobSpec, folder: RunFolder) -> str:
    """The address of a job's checkpoints: what its manifest says, else in its run's folder."""
    storage = spec.checkpoint.storage
    given = storage.uri if storage is not None else None
    return given or str((folder.path / "checkpoints").resolve())


def find_checkpoint(given: str, say: Callable[[str], None]) -> Checkpoint:
    """A whole checkpoint, after a look at every byte.

    Args:
        given: the folder or the address of a step's checkpoint, of all checkpoints of a job, or of
            a run, of which the newest whole one is taken.
        say: hears which one that is, and of newer ones that are damaged.

    Raises:
        CannotExport: there is none, or the one that was named is damaged.
        StorageFailed: the place cannot be read.
    """
    place, _, name = given.rstrip("/").rpartition("/")
    if is_checkpoint_name(name):
        return _named(_store_at(place or ".", given), name)
    address = _place_in(given)
    store = _store_at(address, given)
    found = store.newest(lambda step, error: say(damaged_text(step, error)))
    if found is None:
        raise CannotExport(
            f"no complete checkpoint: got {given}, with none in {store.address}; give the folder "
            "of a run, or of a step in its checkpoints"
        )
    say(f"the newest complete checkpoint is that of step {found.record.step}")
    return found


def _named(store: CheckpointStore, name: str) -> Checkpoint:
    try:
        return store.named(name)
    except CheckpointDamaged as error:
        others = [str(step) for step in store.steps() if f"step-{step:08d}" != name]
        also = f"steps {', '.join(others)}" if others else "none"
        raise CannotExport(
            f"the checkpoint is damaged or not there: got {error}, in {store.address}/{name}; give "
            f"another one: there are {also} beside it"
        ) from error


def _place_in(given: str) -> str:
    """Where the checkpoints of a run are, or what was given where that is no run's folder."""
    if "://" in given:
        return given
    folder = RunFolder(Path(given).expanduser())
    if not folder.path.is_dir():
        kind = "a file" if folder.path.exists() else "nothing there"
        raise CannotExport(
            f"no checkpoint: got {given} ({kind}), allowed the folder of a run or of a step's "
            "checkpoint, or its address; correct it"
        )
    if text := folder.read_manifest():
        try:
            (job,) = load_jobs(text, str(folder.manifest))
        except ManifestError:
            pass  # of another version
        else:
            return place_of_checkpoints(job.spec, folder)
    inside = folder.path / "checkpoints"
    return str((inside if inside.is_dir() else folder.path).resolve())


def _store_at(address: str, given: str) -> CheckpointStore:
    local = "://" not in address
    try:
        return CheckpointStore(str(Path(address).expanduser().resolve()) if local else address)
    except (ValueError, ImportError) as error:  # no such protocol, no package for it
        raise CannotExport(
            f"no such place: got {given} ({error}), allowed a folder or an address that fsspec can "
            "read with the packages that are installed (for s3:// the extra s3)"
        ) from error


def is_there(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has not been deleted since it was read."""
    place = resolve_storage(checkpoint.address)
    try:
        place.fs.info(f"{place.path}/{RECORD_FILE}")
    except FileNotFoundError:
        return False
    except Exception:  # every file system has errors of its own, which say nothing about it
        return True
    return True
