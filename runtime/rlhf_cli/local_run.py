"""A job on this machine: check, plan, train and report; how to resume it after an interruption."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from rlhf_api.errors import OverrideError
from rlhf_api.spec.checkpoint import StartMode
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.local_jobs import local_jobs
from rlhf_cli.manifests import STDIN, annotate_lines, require_one_job
from rlhf_cli.packages.lock import keep_lock
from rlhf_cli.preflight import CheckedJob, RunTarget, preflight, unchecked_notices
from rlhf_cli.rate_changes import changed_rates
from rlhf_cli.resume_checks import check_changes, open_store, prepare_run_folder, start_facts
from rlhf_cli.stopping import install_signal_handlers
from rlhf_cli.user_code import user_code
from rlhf_flow.jobs.lint import lint_job
from rlhf_planner.plan import local_pools
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.controller.run_lock import lock_folder
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.errors import StorageFailed
from rlhf_runtime.faults import Fault, parse_fault, require_targets
from rlhf_runtime.forkserver.standby import choose_fork_server
from rlhf_runtime.preflight.findings import QUICK
from rlhf_runtime.telemetry.progress import make_progress
from rlhf_runtime.telemetry.run_folder import RunFolder

IGNORED = (
    "resources",
    "image",
    "hub",
    "env",
    "managed_by",
    "priority_class_name",
    "suspend",
    "active_deadline_seconds",
    "start_deadline_seconds",
    "cluster_ttl_seconds",
    "ttl_seconds_after_finished",
)
"""Fields of spec for clusters; `rlhf run` lists those that a manifest sets, and ignores them."""


OPTION_FIELDS = {"--steps": "spec.schedule.steps", "--seed": "spec.schedule.seed"}
"""Fields with an option of their own."""


def run_job(
    file: Path,
    output: Path | None,
    devices: int | None,
    steps: int | None,
    seed: int | None,
    overrides: Sequence[str],
    fresh: bool,
    inject: Sequence[str] = (),
) -> None:
    """Check, plan and train the job of a file."""
    # --steps and --seed are shorthands of --set. Which of two values wins would be a guess.
    _check_set_once(overrides, {"--steps": steps, "--seed": seed})
    changes = list(overrides)
    changes += [] if steps is None else [f"spec.schedule.steps={steps}"]
    changes += [] if seed is None else [f"spec.schedule.seed={seed}"]
    faults = tuple(map(parse_fault, inject))
    job = require_one_job(local_jobs(file, changes), file)
    folder = RunFolder(output or Path("rlhf-runs") / job.name)
    here = RunTarget(
        pools=partial(local_pools, job, devices),
        code=user_code(job, run=None if fresh else folder.path),
        lines=partial(annotate_lines, file, job, changes),
        one_machine=True,
    )
    # Everything is checked before the folder is touched: a refused job leaves no trace in it.
    with preflight(job, here, QUICK) as checked:
        _, plan = checked.planned
        require_targets(faults, plan.num_devices)
        stop = StopRequest()
        install_signal_handlers(stop)
        # Two runs in one folder would overwrite each other's checkpoints and metrics.
        with lock_folder(folder.path):
            command = resume_command(file, folder, devices, changes)
            _train(job, checked, folder, fresh, stop, faults, command)


def _check_set_once(overrides: Sequence[str], options: Mapping[str, int | None]) -> None:
    """Check that no field is set both by its option and by --set.

    Raises:
        OverrideError: one is.
    """
    for option, value in options.items():
        both = [text for text in overrides if text.partition("=")[0] == OPTION_FIELDS[option]]
        if value is not None and both:
            raise OverrideError(
                f"{option} and --set set the same field: got {option} {value} and --set "
                f"{both[-1]}, allowed one of them; remove the other"
            )


def _train(
    job: RLHFJob,
    checked: CheckedJob,
    folder: RunFolder,
    fresh: bool,
    stop: StopRequest,
    faults: tuple[Fault, ...],
    command: Sequence[str],
) -> None:
    """Train a checked job, if there is anything left to do."""
    # An unusable store is reported before an earlier run is moved aside.
    store = open_store(job, folder, fresh)
    if not prepare_run_folder(folder, job, fresh, checked.lines):
        return
    # Compared before workers start, since a difference that is not allowed ends the run.
    graphs, plan = checked.planned
    facts = start_facts(plan, checked.python_path)
    changed = check_changes(job, folder, store, facts, checked.lines)
    keep_lock(folder.path, job.spec.code, checked.python_path.packages)
    fork_server, standby_notice = choose_fork_server(plan.device, plan.standby)
    with closing(fork_server), with_resume_hint(command, folder, store):
        # Imported here, so that Ray and the libraries of workers are imported at the same time.
        from rlhf_cli.train import TrainingTask, train
        from rlhf_runtime.controller.worker_sites import OneMachine

        train(
            TrainingTask(
                job=job,
                plan=plan,
                folder=folder,
                store=store,
                site=OneMachine(fork_server),
                stop=stop,
                progress=make_progress(sys.stderr),
                python_path=checked.python_path,
                faults=faults,
                notices=[
                    *changed,
                    *changed_rates(job, graphs, store),
                    *(
                        f"spec.{section} is for clusters; rlhf run ignores it"
                        for section in ignored_sections(job)
                    ),
                    *start_notices(job),
                    *lint_job(job, graphs, plan.device),
                    *checked.warnings,
                    *unchecked_notices(checked),
                    *filter(None, [standby_notice]),
                ],
            )
        )


def ignored_sections(job: RLHFJob) -> list[str]:
    """Sections that have no effect on one machine, by their wire names."""
    fields = type(job.spec).model_fields
    return [fields[name].alias or name for name in IGNORED if name in job.spec.model_fields_set]


def start_notices(job: RLHFJob) -> list[str]:
    """A sentence if the manifest starts over on a cluster."""
    # A job has no uid here: a second `rlhf run` would start over instead of resuming.
    if job.spec.checkpoint.start is StartMode.CONTINUE:
        return []
    return [
        f"spec.checkpoint.start: {job.spec.checkpoint.start} is for clusters; rlhf run ignores it: "
        "use --fresh"
    ]


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
        step = next((record.step for record in store.records()), None)
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
