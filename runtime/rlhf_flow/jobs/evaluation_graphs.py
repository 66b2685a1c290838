"""The graphs of a job that only evaluates: it trains nothing, and other roles do not exist."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName, ModelHead
from rlhf_api.problems import Problem
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import InvalidAlgorithm
from rlhf_flow.jobs.job_graphs import TracedAlgorithm, policy_role, trace_algorithms


def trace_evaluation(
    job: RLHFJob, device: Device = Device.CPU
) -> Mapping[GraphName, TracedAlgorithm]:
    """Trace a job's evaluation.

    Args:
        job: the manifest.
        device: it decides on the precision `Auto`.

    Returns:
        The evaluation, which also stands for the step: planner and workers so get a job whose step
        generates and scores.

    Raises:
        InvalidAlgorithm: the policy does not generate.
        ManifestError: the job has no evaluation data.
        RlhfError: as `trace_algorithms`.
    """
    traced = trace_algorithms(job, device)
    step = traced[GraphName.STEP].graph
    policy = policy_role(step)
    if step.roles[policy].head is not ModelHead.LM:
        raise InvalidAlgorithm(
            f"an evaluation scores generated responses: got {job.spec.algorithm.type.value}, whose "
            f"{policy} gives numbers, allowed an algorithm that trains a language model; evaluate "
            "that model by a manifest in which it is the model of a reward"
        )
    if GraphName.EVALUATION not in traced:
        problem = Problem(
            ("spec", "data", "evaluation"),
            "no evaluation data",
            got="no data.evaluation",
            allowed="prompts to evaluate on, or rewards with a builtin task, which has its own",
            do="add data.evaluation",
        )
        raise ManifestError([problem])
    return dict.fromkeys((GraphName.EVALUATION, GraphName.STEP), traced[GraphName.EVALUATION])
