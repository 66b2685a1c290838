"""An evaluation without training, on one incarnation of workers."""

from __future__ import annotations

from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.jobs.evaluation_graphs import trace_evaluation
from rlhf_flow.jobs.job_graphs import reward_roles
from rlhf_runtime.controller.pass_records import evaluation_metrics
from rlhf_runtime.controller.steps import PassRunner
from rlhf_runtime.controller.unscored_steps import unscored_evaluation
from rlhf_runtime.controller.worker_sites import Site
from rlhf_runtime.controller.workers import Workers, WorkerSettings
from rlhf_runtime.telemetry.records import EvaluationRecord
from rlhf_runtime.telemetry.run_recorder import RunRecorder


def run_evaluation(
    job: RLHFJob,
    plan: Plan,
    settings: WorkerSettings,
    recorder: RunRecorder,
    site: Site,
    step: int,
) -> tuple[EvaluationRecord, int]:
    """Evaluate the policy's source on the evaluation prompts.

    Args:
        job: the manifest.
        plan: of the graphs of `trace_evaluation`.
        settings: of workers.
        recorder: receives the record.
        site: of workers.
        step: sampled responses have the random numbers of the evaluation after this step.

    Returns:
        The record, and the number of prompts.
    """
    traced = trace_evaluation(job, plan.device)
    workers = Workers(job, plan, settings, site)
    try:
        workers.build(recorder.started)
        recorder.notice_data(workers.counts)
        graphs = {name: one.graph for name, one in traced.items()}
        runner = PassRunner(workers, graphs)
        done = runner.wait(runner.evaluate(traced[GraphName.EVALUATION].algorithm, step))
        for reward, failure in done.unscored:
            recorder.unscored(step, reward, failure)
        if done.is_unscored:
            recorder.notice(unscored_evaluation(f"step {step}"))
        metrics = evaluation_metrics(
            done,
            reward_roles(graphs[GraphName.EVALUATION]),
            job.spec.rewards,
            workers.measured,
            job.spec.data.evaluation_names,
        )
        recorder.samples(done.samples)
        record = EvaluationRecord(step, metrics)
        recorder.evaluation(record)
    except BaseException:
        # An orderly close would wait for calls that may never return.
        workers.kill()
        raise
    workers.close()
    return record, workers.counts["evaluation"]
