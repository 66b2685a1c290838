"""`rlhf run`: the whole life of a job on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from rlhf_api.errors import OverrideError
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.local_jobs import local_jobs
from rlhf_cli.planned import devices_text
from rlhf_cli.preflight import Checked, Target, checked, left_to_workers
from rlhf_cli.resume import check_changes, has_work, open_store
from rlhf_cli.resume_hint import same_command, with_resume_hint
from rlhf_cli.stopping import take_over_signals
from rlhf_cli.user_code import user_code
from rlhf_cli.validate import lines_of, only_job
from rlhf_flow.jobs.lint import lint_job
from rlhf_planner.plan import local_pools
from rlhf_runtime.controller.run_lock import lock_folder
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.faults import Fault, parse_fault, require_targets
from rlhf_runtime.forkserver.standby import choose_fork_server
from rlhf_runtime.preflight.limits import QUICK
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
    "ttl_seconds_after_finished",
)
"""Sections for clusters; `rlhf run` names those that a manifest has and does without them."""


OPTION_FIELDS = {"--steps": "spec.schedule.steps", "--seed": "spec.schedule.seed"}
"""Fields that have an option of their own."""


def run_command(
    file: Path,
    output: Path | None,
    devices: int | None,
    steps: int | None,
    seed: int | None,
    overrides: Sequence[str],
    fresh: bool,
    inject: Sequence[str] = (),
) -> None:
    """Check, plan, train, report."""
    _check_given_once(overrides, {"--steps": steps, "--seed": seed})
    changes = list(overrides)
    changes += [] if steps is None else [f"spec.schedule.steps={steps}"]
    changes += [] if seed is None else [f"spec.schedule.seed={seed}"]
    faults = tuple(map(parse_fault, inject))
    job = only_job(local_jobs(file, changes), file)
    here = Target(
        pools=partial(local_pools, job, devices),
        code=user_code(job),
        lines=partial(lines_of, file, job, changes),
        one_machine=True,
    )
    with checked(job, here, QUICK) as start:
        _, plan = start.planned
        require_targets(faults, plan.num_devices)
        folder = RunFolder(output or Path("rlhf-runs") / job.name)
        stop = StopRequest()
        take_over_signals(stop)
        with lock_folder(folder.path):
            command = same_command(file, folder, devices, changes)
            _train(job, start, folder, fresh, stop, faults, command)


def _check_given_once(overrides: Sequence[str], options: Mapping[str, int | None]) -> None:
    """Let no option hide what --set says of the same field.

    Raises:
        OverrideError: both are given.
    """
    for option, value in options.items():
        both = [text for text in overrides if text.partition("=")[0] == OPTION_FIELDS[option]]
        if value is not None and both:
            raise OverrideError(
                f"{option} and --set say the same field: got {option} {value} and --set "
                f"{both[-1]}, allowed one of them; remove the other"
            )


def _train(
    job: RLHFJob,
    start: Checked,
    folder: RunFolder,
    fresh: bool,
    stop: StopRequest,
    faults: tuple[Fault, ...],
    command: Sequence[str],
) -> None:
    """Train a job that has passed its checks, if there is something left to do."""
    store = open_store(job, folder, fresh)
    if not has_work(folder, job, fresh, start.lines):
        return
    graphs, plan = start.planned
    changed = check_changes(job, folder, store, devices_text(plan), start.lines)
    fork_server, about_it = choose_fork_server(plan.device, plan.standby)
    with closing(fork_server), with_resume_hint(command, folder, store):
        # Ray is imported beside what workers import.
        from rlhf_cli.train import Task, train
        from rlhf_runtime.controller.site import OneMachine

        train(
            Task(
                job=job,
                plan=plan,
                folder=folder,
                store=store,
                site=OneMachine(fork_server),
                stop=stop,
                progress=make_progress(sys.stderr),
                python_path=start.python_path,
                faults=faults,
                notices=[
                    *changed,
                    *(
                        f"spec.{section} is for clusters; rlhf run does without it"
                        for section in ignored_sections(job)
                    ),
                    *lint_job(job, graphs, plan.device),
                    *left_to_workers(start),
                    *filter(None, [about_it]),
                ],
            )
        )


def ignored_sections(job: RLHFJob) -> list[str]:
    """Sections of the manifest that mean nothing on one machine, by their wire names."""
    fields = type(job.spec).model_fields
    return [fields[name].alias or name for name in IGNORED if name in job.spec.model_fields_set]
