"""Checks that a call compares log-probabilities of the distribution that was sampled."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_flow.errors import FlowError
from rlhf_flow.step.calls import ComputeOptions, GenerateOptions, ModelCall, TrainOptions
from rlhf_flow.step.columns import (
    KEPT_TOKENS,
    RESPONSE_MASK,
    RESPONSE_TOKENS,
    ROLLOUT_LOG_PROBS,
)
from rlhf_flow.trace.symbolic import SymbolicBatch


def check_sampling(call: ModelCall, source: SymbolicBatch, earlier: Sequence[ModelCall]) -> None:
    """Refuse a loss on rollout log-probabilities of another temperature.

    Args:
        call: to check.
        source: the batch that it reads.
        earlier: calls of the step before it.

    Raises:
        FlowError: the loss reads them.
    """
    if not isinstance(call.options, TrainOptions):
        return
    # By the writer, not by the name: a join may bring the column of an earlier generate call.
    versions = source.versions(call.reads)
    samplers = {version.call for version in versions if version.column == ROLLOUT_LOG_PROBS}
    for sampler in (other for other in earlier if other.id in samplers):
        options = sampler.options
        if not isinstance(options, GenerateOptions):
            continue
        if not options.greedy and options.temperature is None:
            continue
        how = "greedily" if options.greedy else f"at temperature {options.temperature}"
        raise FlowError(
            f"{call.id} trains on what {sampler.id} has sampled {how}: its loss compares "
            "log-probabilities at rollout.temperature; allowed what a generate call without "
            "greedy and temperature has sampled, or a loss that reads no "
            f"{ROLLOUT_LOG_PROBS}; change one of them"
        )


def check_kept_tokens(call: ModelCall, source: SymbolicBatch, earlier: Sequence[ModelCall]) -> None:
    """Refuse log-probabilities of responses of truncated sampling without the kept tokens.

    Args:
        call: to check.
        source: the batch that it reads.
        earlier: calls of the step before it.

    Raises:
        FlowError: the call does not read them.
    """
    options = call.options
    compares = call.method == "log_probs" or (
        isinstance(options, TrainOptions) and options.loss.compares_with_sampling
    )
    responses = source.origins.get(RESPONSE_TOKENS)
    if not compares or responses is None or KEPT_TOKENS in call.reads:
        return
    sampled = {version.call for version in responses.versions}
    if any(KEPT_TOKENS in other.writes for other in earlier if other.id in sampled):
        raise FlowError(
            f"{call.id} compares probabilities of truncated sampling with those of all tokens: "
            f"got responses of {responses.calls} without {KEPT_TOKENS}, allowed with it; "
            f"select {KEPT_TOKENS}, too, or remove topP, topK and minP from rollout"
        )


def check_response_mask(
    call: ModelCall, source: SymbolicBatch, earlier: Sequence[ModelCall]
) -> None:
    """Refuse to train on conversations without the mask of what was sampled.

    Args:
        call: to check.
        source: the batch that it reads.
        earlier: calls of the step before it.

    Raises:
        FlowError: the call does not read the mask.
    """
    responses = source.origins.get(RESPONSE_TOKENS)
    counts_tokens = isinstance(call.options, TrainOptions | ComputeOptions)
    if not counts_tokens or responses is None or RESPONSE_MASK in source.origins:
        return
    sampled = {version.call for version in responses.versions}
    if any(RESPONSE_MASK in other.writes for other in earlier if other.id in sampled):
        raise FlowError(
            f"{call.id} counts tokens that tools have written: got conversations of "
            f"{responses.calls} without {RESPONSE_MASK}, allowed with it; select {RESPONSE_MASK}, "
            "too"
        )
