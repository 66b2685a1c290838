"""An evaluation of a model on this machine: check, plan, evaluate, print the metrics."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import typer

from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_cli.console import page_console
from rlhf_cli.earlier_run import put_aside
from rlhf_cli.evaluated_model import find_model
from rlhf_cli.evaluation_job import evaluation_job
from rlhf_cli.local_jobs import local_jobs
from rlhf_cli.manifests import annotate_lines, require_one_job
from rlhf_cli.preflight import CheckedJob, RunTarget, preflight, unchecked_notices
from rlhf_cli.stopping import install_signal_handlers
from rlhf_cli.user_code import user_code
from rlhf_flow.jobs.evaluation_graphs import trace_evaluation
from rlhf_flow.jobs.job_graphs import policy_role
from rlhf_flow.trace.graph import Graph
from rlhf_planner.plan import local_pools
from rlhf_runtime.controller.run_lock import lock_folder
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.errors import FolderUnusable
from rlhf_runtime.forkserver.standby import choose_fork_server
from rlhf_runtime.models.folder import CONFIG_FILE
from rlhf_runtime.preflight.findings import QUICK
from rlhf_runtime.telemetry.progress import make_progress
from rlhf_runtime.telemetry.record_lines import plain_values
from rlhf_runtime.telemetry.records import EvaluationRecord, Outcome
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.run_recorder import RunRecorder
from rlhf_runtime.telemetry.trackers import TrackerGroup

EVALUATION = "Evaluation"
"""Stands for the algorithm's type in records."""
PREFIX = "evaluation/"
"""Prefix of the metrics of evaluations."""


@dataclass(frozen=True)
class EvaluationRequest:
    """Arguments of `rlhf evaluate`."""

    model: str
    file: Path
    """The manifest."""
    output: Path | None
    devices: int | None
    step: int | None
    overrides: tuple[str, ...] = ()
    as_json: bool = False


def evaluate_model(request: EvaluationRequest) -> None:
    """Evaluate a model on the evaluation data of a manifest, and print the metrics."""
    manifest = require_one_job(local_jobs(request.file, request.overrides), request.file)
    model = find_model(request.model)
    lines = partial(annotate_lines, request.file, manifest, request.overrides)
    # A run's model is evaluated with the packages of that run.
    run = None if model.source.path is None else Path(model.source.path).parent
    with ExitStack() as stack:
        with lines():
            path = stack.enter_context(user_code(manifest, run))
            policy = policy_role(trace_evaluation(manifest)[GraphName.EVALUATION].graph)
            job = evaluation_job(manifest, policy, model.source)
        here = RunTarget(
            pools=partial(local_pools, job, request.devices),
            code=nullcontext(path),
            lines=lines,
            one_machine=True,
        )
        stop = StopRequest()
        install_signal_handlers(stop)
        folder = RunFolder(request.output or Path("rlhf-runs") / f"{job.name}-evaluation")
        _require_no_model(folder)
        step = model.step if request.step is None else request.step
        checked = stack.enter_context(preflight(job, here, QUICK, _evaluation_graphs))
        stack.enter_context(lock_folder(folder.path))
        if folder.metrics.exists():
            _require_no_run(folder)
            put_aside(folder, "evaluation")
        record, num_prompts = _evaluate(job, checked, folder, stop, step)
    names = job.spec.data.evaluation_names
    if request.as_json:
        shown = {"model": request.model, "step": step, "prompts": num_prompts}
        typer.echo(json.dumps({**shown, "metrics": plain_values(record.metrics)}, indent=2))
    else:
        _print_table(record.metrics, names, f"{request.model}: {num_prompts} prompts")


def _evaluation_graphs(job: RLHFJob, device: Device) -> Mapping[GraphName, Graph]:
    return {name: traced.graph for name, traced in trace_evaluation(job, device).items()}


def _require_no_model(folder: RunFolder) -> None:
    """Refuse to write records among the files of a model.

    Raises:
        FolderUnusable: the folder is a model's.
    """
    if (folder.path / CONFIG_FILE).exists():
        raise FolderUnusable(
            f"the folder holds a model: got {folder.path}, allowed a new folder or that of an "
            "earlier evaluation; choose another with --output"
        )


def _require_no_run(folder: RunFolder) -> None:
    """Refuse to evaluate in the folder of a run.

    Raises:
        FolderUnusable: the folder holds a run.
    """
    runs = folder.read().runs
    if not runs or not runs[-1].is_evaluation:
        raise FolderUnusable(
            f"the folder holds a run: got {folder.path}, allowed a new folder or that of an "
            "earlier evaluation; choose another with --output"
        )


def _evaluate(
    job: RLHFJob, checked: CheckedJob, folder: RunFolder, stop: StopRequest, step: int
) -> tuple[EvaluationRecord, int]:
    """Start workers, evaluate, and end them."""
    _, plan = checked.planned
    fork_server, standby_notice = choose_fork_server(plan.device, plan.standby)
    with closing(fork_server):
        # Imported here, so that Ray and the libraries of workers are imported at the same time.
        from rlhf_cli.recorded_run import recorded_run, run_record, worker_settings
        from rlhf_runtime.controller.evaluation_run import run_evaluation
        from rlhf_runtime.controller.worker_sites import OneMachine

        site = OneMachine(fork_server)
        recorder = RunRecorder(folder, make_progress(sys.stderr), TrackerGroup({}))
        record = replace(
            run_record(job, plan, folder, checked.python_path),
            algorithm=EVALUATION,
            total_steps=0,
            warm_start_steps=0,
        )
        with recorded_run(job, plan, recorder, record, site, stop) as open_site:
            for notice in (*checked.warnings, *unchecked_notices(checked), standby_notice):
                if notice:
                    recorder.notice(notice)
            open_site()
            settings = worker_settings(folder, checked.python_path)
            result = run_evaluation(job, plan, settings, recorder, site, step)
            recorder.end(Outcome.SUCCEEDED)
    return result


def _print_table(metrics: Mapping[str, float], sources: Sequence[str], title: str) -> None:
    """Print metrics as rows, with a column for all prompts and one for each source."""
    from rich.table import Table

    typer.echo(title)
    table = Table(box=None, pad_edge=False)
    table.add_column("metric")
    for name in ("all", *sources):
        table.add_column(name, justify="right")
    for row in metric_rows(metrics, sources):
        table.add_row(*row)
    page_console().print(table)


def metric_rows(metrics: Mapping[str, float], sources: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the rows of the table: a metric's name, its value over all prompts, and over each
    source's; empty where there is none."""
    by_name: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        source, slash, rest = name.removeprefix(PREFIX).partition("/")
        is_of_source = bool(slash) and source in sources
        metric = rest if is_of_source else name.removeprefix(PREFIX)
        by_name.setdefault(metric, {})[source if is_of_source else ""] = value
    return [
        (metric, *(f"{cells[name]:.5g}" if name in cells else "" for name in ("", *sources)))
        for metric, cells in by_name.items()
    ]
