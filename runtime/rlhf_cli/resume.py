"""What `rlhf run` makes of a folder and of a store: start, go on, or nothing to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rlhf_api.changes import differences, refused_changes, spec_document
from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.reading.manifest import load_jobs
from rlhf_api.reading.model_errors import format_value
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.found_checkpoint import place_of_checkpoints
from rlhf_cli.local_jobs import with_places
from rlhf_cli.validate import Lines
from rlhf_runtime.checkpoint.storage import require_persistent, storage_unusable
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.controller.run_lock import LOCK
from rlhf_runtime.errors import CannotResume, FolderUnusable, StorageFailed
from rlhf_runtime.telemetry.journal import Journal
from rlhf_runtime.telemetry.records import Outcome
from rlhf_runtime.telemetry.run_folder import RunFolder

NEVER_THERE = (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError)
"""What trying again does not mend: no such folder or bucket, a file, or no right to write."""


def has_work(folder: RunFolder, job: RLHFJob, fresh: bool, lines: Lines = nullcontext) -> bool:
    """Whether there is something to do in the folder; `fresh` puts an earlier run aside.

    An unfinished run goes on; a finished one does if the schedule has more steps now.

    Raises:
        CannotResume: it has finished under another manifest.
    """
    if not folder.metrics.exists():
        return True
    if fresh:
        aside = _free_name(folder.path)
        try:
            aside.mkdir()
            for entry in folder.path.iterdir():
                if entry.name != LOCK:
                    entry.rename(aside / entry.name)
        except OSError as error:
            raise FolderUnusable(
                f"the earlier run cannot be put aside: got {error}; correct the permissions, or "
                "choose another folder with --output"
            ) from error
        sys.stderr.write(f"the earlier run was put aside: {aside}\n")
        return True
    records = folder.read()
    is_over = records.end is not None and records.end.outcome is Outcome.SUCCEEDED
    if is_over and records.runs[-1].total_steps >= job.spec.schedule.steps:
        _check_finished(job, folder, lines)
        sys.stderr.write(
            f"already finished: {folder.path}; its report is {folder.report}. "
            "To train again use --fresh (this run is kept aside) or another --output; more --steps "
            "go on from here.\n"
        )
        return False
    return True


def _check_finished(job: RLHFJob, folder: RunFolder, lines: Lines) -> None:
    """Refuse to take a finished run for that of another manifest.

    Raises:
        CannotResume: a field differs that must not.
    """
    before = _trained_spec(folder)
    before = None if before is None else with_places(before, job)
    problems = [] if before is None else refused_changes(before, spec_document(job.spec))
    if before is not None:
        for text in _told(before, job, "at the last start", "which changes nothing any more"):
            sys.stderr.write(text + "\n")
    if problems:
        raise CannotResume(
            f"another manifest's run has finished in {folder.path}: --fresh starts over and keeps "
            "that one, --output takes another folder\n" + _placed(problems, lines)
        )


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside


def open_store(job: RLHFJob, folder: RunFolder, fresh: bool) -> CheckpointStore:
    """Where the job's checkpoints are.

    Raises:
        StorageUnusable: nothing can be kept there.
        CannotResume: `fresh`, and checkpoints of an earlier run lie outside of its folder.
    """
    storage = job.spec.checkpoint.storage
    given = storage.uri if storage is not None else None
    address = place_of_checkpoints(job.spec, folder)
    require_persistent(address)
    store = CheckpointStore(address)
    try:
        store.probe()
    except StorageFailed as error:
        if isinstance(error.__cause__, NEVER_THERE):
            raise storage_unusable(address, error.__cause__) from error
        raise
    steps = store.steps()
    if fresh and given and steps:
        raise CannotResume(
            f"--fresh puts the run's folder aside, not what lies elsewhere: got checkpoints of "
            f"{len(steps)} steps in {address}; change checkpoint.storage, or delete them"
        )
    return store


def tell_where_it_begins(store: CheckpointStore, is_known: bool, journal: Journal) -> None:
    """Say so where folder and checkpoints do not belong together.

    Args:
        store: of the checkpoints.
        is_known: whether the run's folder holds a run already.
        journal: hears of it.
    """
    steps = store.steps()
    if steps and not is_known:
        journal.notice(
            f"{store.address} has checkpoints of another run, up to step {steps[0]}: this one goes "
            "on from there; for a new beginning give another checkpoint.storage"
        )
    if is_known and not steps:
        journal.notice(
            f"{store.address} has no checkpoint: the run in this folder begins again at its start"
        )


def check_changes(
    job: RLHFJob,
    folder: RunFolder,
    store: CheckpointStore,
    devices: str = "",
    lines: Lines = nullcontext,
) -> list[str]:
    """Compare with the manifest under which the job has come as far as it has.

    Args:
        job: as it is now.
        folder: of the run.
        store: of its checkpoints.
        devices: what it runs on now, for people; empty: that is not compared.
        lines: of its manifest.

    Returns:
        What differs from the last start in this folder, each with both values: the new ones are in
        force.

    Raises:
        CannotResume: a field differs that must not.
    """
    records = (store.record(step) for step in store.steps())
    record = next((record for record in records if record is not None), None)
    before = _trained_spec(folder) if record is None else record.spec
    before = None if before is None else with_places(before, job)
    problems = [] if before is None else refused_changes(before, spec_document(job.spec))
    if record is not None and job.spec.schedule.steps < record.step:
        problems.append(
            Problem(
                ("spec", "schedule", "steps"),
                "fewer steps than are trained already",
                got=str(job.spec.schedule.steps),
                allowed=f"at least {record.step}",
                do="raise it, or start over (rlhf run: --fresh)",
            )
        )
    if problems:
        raise CannotResume(
            "the job cannot go on with this manifest; --fresh starts over and keeps this run\n"
            + _placed(problems, lines)
        )
    return [
        *_changed_fields(job, folder, None if record is None else record.spec),
        *_changed_devices(folder, devices),
    ]


def _placed(problems: Sequence[Problem], lines: Lines) -> str:
    """Problems, each on a line, with the places of their fields."""
    try:
        with lines():
            raise ManifestError(problems)
    except ManifestError as error:
        return str(error)


def _changed_fields(
    job: RLHFJob, folder: RunFolder, saved: Mapping[str, Any] | None
) -> Iterator[str]:
    """Fields that differ from the last start in a folder; from a checkpoint's where it had none."""
    last = _spec_of(folder) if folder.metrics.exists() else None
    if last is not None:
        yield from _told(with_places(last, job), job, "at the last start", "which is in force now")
    elif saved is not None:
        yield from _told(with_places(saved, job), job, "in the checkpoint", "which is in force now")


def _changed_devices(folder: RunFolder, devices: str) -> Iterator[str]:
    """Whether other devices are used than at the last start in a folder."""
    runs = folder.read().runs if folder.metrics.exists() else ()
    if devices and runs and runs[-1].devices != devices:
        yield f"other devices than at the last start: {devices} now, {runs[-1].devices} then"


def _told(before: Mapping[str, Any], job: RLHFJob, since: str, meaning: str) -> list[str]:
    """Every field that differs from an earlier manifest."""
    return [
        f"another value than {since}: spec.{'.'.join(map(str, path))} is {format_value(after)}, "
        f"{meaning}, and was {format_value(old)}"
        for path, old, after in differences(before, spec_document(job.spec))
    ]


def _trained_spec(folder: RunFolder) -> Mapping[str, Any] | None:
    """The spec of the run in a folder. None: it has not trained yet, or is of another version."""
    if not folder.metrics.exists() or not folder.read().steps:
        return None
    return _spec_of(folder)


def _spec_of(folder: RunFolder) -> Mapping[str, Any] | None:
    """The spec of the last start in a folder. None: there was none, or it is of another version."""
    text = folder.read_manifest()
    if text is None:
        return None
    try:
        (job,) = load_jobs(text, str(folder.manifest))
    except ManifestError:
        return None  # of another version
    return spec_document(job.spec)
