"""Decide whether a run starts, resumes, or has nothing left to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from rlhf_api.changes import differences, refused_changes, spec_document, with_new_defaults
from rlhf_api.errors import ManifestError
from rlhf_api.plan import Plan
from rlhf_api.problems import Problem
from rlhf_api.reading.model_errors import format_value
from rlhf_api.spec.job import RLHFJob, RLHFJobSpec
from rlhf_cli.checkpoint_lookup import checkpoint_address
from rlhf_cli.earlier_run import put_aside, read_job
from rlhf_cli.local_jobs import with_resolved_paths
from rlhf_cli.manifests import LineContext
from rlhf_cli.planning import devices_text
from rlhf_runtime.checkpoint.storage import require_persistent, storage_unusable
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.controller.early_stop import early_stop
from rlhf_runtime.errors import CannotResume, FolderUnusable, StorageFailed
from rlhf_runtime.journal.settings_digest import code_digest
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.telemetry.records import EARLY_STOP, Outcome, RunRecords
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.run_recorder import RunRecorder

PERMANENT_ERRORS = (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError)
"""Errors that a retry does not mend: no such folder or bucket, a file, or no right to write."""


@dataclass(frozen=True)
class Advice:
    """Advice for a run that cannot be resumed, or has finished."""

    start_over: str
    """Sentence without a full stop."""
    more_steps: str
    """Text that says how to set another number of steps."""


ON_MACHINE = Advice(
    "--fresh starts over and keeps that run aside, --output chooses another folder", "--steps"
)
ON_CLUSTER = Advice(
    "to start over, delete the job and create it with checkpoint.start: Fresh, which keeps that "
    "run aside, or with another checkpoint.storage.persistentVolumeClaim.subPath",
    "schedule.steps",
)


@dataclass(frozen=True)
class StartFacts:
    """Facts about this start that are compared with the last one; empty: not compared.

    devices: as text.
    code: digest of the user's code.
    """

    devices: str = ""
    code: str = ""


NO_FACTS = StartFacts()


def start_facts(plan: Plan, python_path: PythonPath) -> StartFacts:
    """Return the facts about this start.

    Args:
        plan: of the job.
        python_path: the user's code and its packages.
    """
    return StartFacts(devices_text(plan), code_digest(python_path))


def prepare_run_folder(
    folder: RunFolder,
    job: RLHFJob,
    fresh: bool,
    lines: LineContext = nullcontext,
    advice: Advice = ON_MACHINE,
) -> bool:
    """Return True if there is something to train in the folder.

    An unfinished run resumes; a finished one does if the schedule has more steps now, or no longer
    ends early.

    Args:
        fresh: move an earlier run's files to a new folder beside it.
        lines: adds line numbers of the manifest.
        advice: for messages.

    Raises:
        CannotResume: a run has finished there under another manifest.
        FolderUnusable: an evaluation is there, or an earlier run cannot be moved.
    """
    if not folder.metrics.exists():
        return True
    if fresh:
        put_aside(folder, "run")
        return True
    records = folder.read()
    if records.runs and records.runs[-1].is_evaluation:
        raise FolderUnusable(
            f"the folder holds an evaluation: got {folder.path}, allowed a new folder or a run's; "
            f"{advice.start_over}"
        )
    cause = _cause_of_end(records, job.spec)
    if cause is None:
        return True
    # "Already finished" would mislead if the run had another manifest.
    _check_finished(job, folder, lines, advice)
    patience = "a larger schedule.earlyStop.patience continues"
    more = patience if cause else f"more {advice.more_steps} continue"
    sys.stderr.write(
        f"already finished: {folder.path}{f' ({cause})' if cause else ''}; its report is "
        f"{folder.report}. To train again: {advice.start_over}; {more} from here.\n"
    )
    return False


def _cause_of_end(records: RunRecords, spec: RLHFJobSpec) -> str | None:
    """Return why a run that ended well has nothing left to train under a manifest.

    Returns:
        The text of an early stop; empty: all steps are done. None: something is left to train.
    """
    if records.end is None or records.end.outcome is not Outcome.SUCCEEDED:
        return None
    reached = records.reached_step
    ended_early = records.end.reason == EARLY_STOP
    if (reached if ended_early else records.runs[-1].total_steps) >= spec.schedule.steps:
        return ""
    # A finished run with fewer steps than the manifest's schedule resumes for the rest, unless its
    # evaluations end training under this manifest, too.
    evaluations = [
        (record.step, record.metrics) for record in records.evaluations if record.step <= reached
    ]
    stop = early_stop(spec, reached, evaluations)
    return None if stop is None else str(stop)


def _check_finished(job: RLHFJob, folder: RunFolder, lines: LineContext, advice: Advice) -> None:
    """Check that a finished run belongs to this manifest.

    Raises:
        CannotResume: a field differs that must not.
    """
    before = _trained_spec(folder)
    before = None if before is None else with_resolved_paths(before, job)
    problems = [] if before is None else refused_changes(before, spec_document(job.spec))
    if before is not None:
        for text in _difference_texts(
            before, job, "the last start", "which has no effect any more"
        ):
            sys.stderr.write(text + "\n")
    if problems:
        raise CannotResume(
            f"a run of another manifest has finished in {folder.path}: {advice.start_over}\n"
            + _located_text(problems, lines)
        )


def open_store(job: RLHFJob, folder: RunFolder, fresh: bool) -> CheckpointStore:
    """Open the store of the job's checkpoints.

    Raises:
        StorageUnusable: nothing can be stored there.
        CannotResume: `fresh`, and the store has checkpoints outside of the run's folder.
    """
    storage = job.spec.checkpoint.storage
    is_outside = storage is not None and storage.uri is not None
    address = checkpoint_address(job.spec, folder)
    require_persistent(address)
    # The store is tried before the start: at the first save it would cost the steps until then.
    store = CheckpointStore(address)
    try:
        store.check_writable()
    except StorageFailed as error:
        if isinstance(error.__cause__, PERMANENT_ERRORS):
            raise storage_unusable(address, error.__cause__) from error
        raise
    steps = store.steps()
    # Checkpoints inside the folder are moved aside with it. Those elsewhere stay, and resuming from
    # them would not be a fresh start.
    if fresh and is_outside and steps:
        raise CannotResume(
            f"--fresh puts the run's folder aside, not what lies elsewhere: got checkpoints of "
            f"{len(steps)} steps in {address}; change checkpoint.storage, or delete them"
        )
    return store


def note_checkpoint_mismatch(store: CheckpointStore, has_run: bool, recorder: RunRecorder) -> None:
    """Record a notice where only one of folder and store belongs to an earlier run.

    Args:
        store: the job's checkpoints.
        has_run: True if the run's folder already contains a run.
        recorder: receives the notice.
    """
    steps = store.steps()
    if steps and not has_run:
        recorder.notice(
            f"{store.address} has checkpoints of another run, up to step {steps[0]}: this one "
            "resumes there; to start from the beginning give another checkpoint.storage"
        )
    if has_run and not steps:
        recorder.notice(
            f"{store.address} has no checkpoint: the run in this folder starts from the beginning"
        )


def check_changes(
    job: RLHFJob,
    folder: RunFolder,
    store: CheckpointStore,
    start: StartFacts = NO_FACTS,
    lines: LineContext = nullcontext,
    advice: Advice = ON_MACHINE,
) -> list[str]:
    """Compare the manifest with that of the progress made so far.

    Args:
        job: the current manifest.
        folder: of the run.
        store: of its checkpoints.
        start: devices and code now.
        lines: adds line numbers of the manifest.
        advice: for messages.

    Returns:
        A sentence for each difference from the last start in this folder. New values are in force.

    Raises:
        CannotResume: a field differs that must not.
    """
    # The newest readable checkpoint counts, since training resumes from it. Without one it is the
    # folder's last manifest, if that has trained a step.
    record = next(store.records(), None)
    saved = None if record is None else with_new_defaults(record.spec)
    before = _trained_spec(folder) if saved is None else saved
    before = None if before is None else with_resolved_paths(before, job)
    problems = [] if before is None else refused_changes(before, spec_document(job.spec))
    if record is not None and job.spec.schedule.steps < record.step:
        problems.append(
            Problem(
                ("spec", "schedule", "steps"),
                "fewer steps than are trained already",
                got=str(job.spec.schedule.steps),
                allowed=f"at least {record.step}",
                do="raise it, or start over",
            )
        )
    if problems:
        raise CannotResume(
            f"the job cannot resume with this manifest; {advice.start_over}\n"
            + _located_text(problems, lines)
        )
    return [
        *_changed_fields(job, folder, saved),
        *_changed_facts(folder, start),
    ]


def _located_text(problems: Sequence[Problem], lines: LineContext) -> str:
    """Problems with the lines of their fields, one per line."""
    # `lines` adds positions to an error that is raised inside.
    try:
        with lines():
            raise ManifestError(problems)
    except ManifestError as error:
        return str(error)


def _changed_fields(
    job: RLHFJob, folder: RunFolder, saved: Mapping[str, Any] | None
) -> Iterator[str]:
    """Fields that differ from the last start in the folder, or from the checkpoint if there was
    none."""
    last = _last_spec(folder) if folder.metrics.exists() else None
    if last is not None:
        yield from _difference_texts(
            with_resolved_paths(last, job), job, "the last start", "which is in force now"
        )
    elif saved is not None:
        yield from _difference_texts(
            with_resolved_paths(saved, job), job, "the checkpoint", "which is in force now"
        )


def _changed_facts(folder: RunFolder, start: StartFacts) -> Iterator[str]:
    """Yield a sentence if the devices differ from the last start's, and one if the code does."""
    runs = folder.read().runs if folder.metrics.exists() else ()
    if not runs:
        return
    last = runs[-1]
    if start.devices and last.devices != start.devices:
        yield f"other devices than at the last start: {start.devices} now, {last.devices} then"
    # Earlier releases have not recorded the code.
    if start.code and last.code and last.code != start.code:
        yield (
            "other code than at the last start: Python files of spec.code or of the current "
            "folder, or packages of code.requirements differ; the steps from here on run with "
            "those of now"
        )


def _difference_texts(
    before: Mapping[str, Any], job: RLHFJob, since: str, meaning: str
) -> list[str]:
    """A sentence for each field that differs from an earlier spec."""
    return [
        f"differs from {since}: spec.{'.'.join(map(str, path))} is {format_value(after)}, "
        f"{meaning}, and was {format_value(old)}"
        for path, old, after in differences(before, spec_document(job.spec))
    ]


def _trained_spec(folder: RunFolder) -> Mapping[str, Any] | None:
    """The spec of a run that has trained a step; None without one, or of another version."""
    if not folder.metrics.exists() or not folder.read().steps:
        return None
    return _last_spec(folder)


def _last_spec(folder: RunFolder) -> Mapping[str, Any] | None:
    """The spec of the last start in the folder; None without one, or of another version."""
    job = read_job(folder)
    return None if job is None else spec_document(job.spec)
