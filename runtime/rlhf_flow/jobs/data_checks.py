"""Checks that a step uses the rows of the data as what they are: pairs, conversations, texts."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_api.calls import CallKind
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.errors import InvalidAlgorithm
from rlhf_flow.step.columns import RESPONSE_TOKENS
from rlhf_flow.trace.graph import PROMPTS, Graph


def check_pairs(job: RLHFJob, graph: Graph) -> None:
    """Refuse to generate from preference pairs, which contain every prompt twice.

    Raises:
        InvalidAlgorithm: a call would.
    """
    if job.spec.data.train.preferences is None:
        return
    for call in _answering_data(graph):
        text = (
            f"{call} would answer every prompt twice: got the rows of data.train.preferences, two "
            "for each prompt, allowed rows of prompts; remove data.train.preferences, or the call"
        )
        raise InvalidAlgorithm(graph.prefix_location(call, text))


def check_all_answers(job: RLHFJob, graph: Graph) -> None:
    """Refuse conversations whose answers are all to be trained on, if the step does something else
    with them, and no warm start trains on them.

    Raises:
        InvalidAlgorithm: it generates answers to their prompts, or reads no answers.
    """
    # After a warm start a policy generates conversations from their beginnings.
    if not job.spec.data.train.trains_all_answers or job.spec.schedule.warm_start is not None:
        return
    for call in _answering_data(graph):
        text = (
            f"{call} would answer only the beginnings of conversations: got data.train with "
            "trainOn: AllAnswers, whose prompts end before the first answer, allowed LastAnswer; "
            "remove trainOn or the call, or add schedule.warmStart"
        )
        raise InvalidAlgorithm(graph.prefix_location(call, text))
    if RESPONSE_TOKENS not in graph.inputs.prompts:
        raise InvalidAlgorithm(
            "data.train.trainOn that nothing reads: got AllAnswers in a step that does not read "
            "the answers of the data, allowed LastAnswer; remove trainOn, train on the answers, or "
            "add schedule.warmStart"
        )


def check_pretraining(job: RLHFJob, graph: Graph) -> None:
    """Refuse data.pretraining if the step does not read it.

    Raises:
        InvalidAlgorithm: it does not.
    """
    if job.spec.data.pretraining is not None and not graph.inputs.pretraining:
        raise InvalidAlgorithm(
            f"data.pretraining that nothing reads: got {job.spec.algorithm.type.value} without a "
            "call of flow.pretraining(), allowed for steps that train on it, such as by "
            "flow.actor.train(batch, loss, (flow.pretraining(), CrossEntropy(weight=0.1))); "
            "remove it, or write such a step"
        )


def _answering_data(graph: Graph) -> Iterator[str]:
    """The calls that generate responses to the data's prompts."""
    generating = {call.id for call in graph.calls_of_kind(CallKind.GENERATE)}
    for edge in graph.data_edges:
        if edge.source == PROMPTS and edge.target in generating:
            yield edge.target
