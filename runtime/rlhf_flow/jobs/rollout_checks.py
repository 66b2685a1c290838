"""Checks that a step applies the settings of rollout: onStop and truncated sampling."""

from __future__ import annotations

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.stopping import StopAction, StopReason
from rlhf_flow.step.calls import GenerateOptions, TrainOptions
from rlhf_flow.step.losses import ClippedLoss, ValueLoss
from rlhf_flow.trace.graph import Graph


def check_on_stop(job: RLHFJob, graph: Graph, *, is_scored: bool) -> None:
    """Refuse a treatment of responses that would change nothing in the step.

    Args:
        job: the manifest.
        graph: of its step.
        is_scored: True if the step has a role that scores.

    Raises:
        ManifestError: nothing applies it.
    """
    trained = [call.options for call in graph.calls_of_kind(CallKind.TRAIN)]
    losses = [options.loss for options in trained if isinstance(options, TrainOptions)]
    applies = {
        StopAction.TRAIN: True,
        StopAction.MASK: any(isinstance(loss, ClippedLoss | ValueLoss) for loss in losses),
        StopAction.LEAVE_OUT: is_scored and bool(graph.calls_of_kind(CallKind.GENERATE)),
    }
    needs = {
        StopAction.MASK: "a step that trains by ClippedLoss or ValueLoss",
        StopAction.LEAVE_OUT: "a step that generates responses and scores them",
    }
    on_stop = job.spec.rollout.stop_actions
    problems = [
        Problem(
            ("spec", "rollout", "onStop", reason.value),
            "a treatment of responses that the step never applies",
            got=action.value,
            allowed=f"Train, or {needs[action]}",
            do="remove onStop",
        )
        for reason in StopReason
        if not applies[action := on_stop.action(reason)]
    ]
    if problems:
        raise ManifestError(problems)


def check_truncation(job: RLHFJob, graph: Graph) -> None:
    """Refuse truncated sampling in a job whose step samples nothing.

    Raises:
        ManifestError: the step samples nothing.
    """
    generating = [call.options for call in graph.calls_of_kind(CallKind.GENERATE)]
    if any(isinstance(options, GenerateOptions) and not options.greedy for options in generating):
        return
    problems = [
        Problem(
            ("spec", "rollout", field),
            "truncated sampling in a step that samples nothing",
            got=f"{field} and {len(generating)} generate calls, none of which samples",
            allowed="a step with flow.<role>.generate(...) that is not greedy",
            do=f"remove {field}",
        )
        for field in job.spec.rollout.truncation.fields
    ]
    if problems:
        raise ManifestError(problems)
