"""The expected work of a call of a step: rows and columns."""

from __future__ import annotations

from typing import NamedTuple

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import GenerateOptions, ModelCall, TrainOptions
from rlhf_flow.step.columns import PER_TOKEN, Kind, column_spec
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.generation import SplitGeneration
from rlhf_planner.cost.micro_batches import CallRows, Lengths
from rlhf_planner.memory.generation import GenerationCall
from rlhf_planner.problem.problem import PlanningProblem, Workload

# Share of responses that are cut off at the limit, if the manifest does not say: 0.4 % of 5,120 in
# a step of verl (verl-project/verl, issue 1208). Those have at most the second share of all tokens,
# so that a limit far above the mean changes the other lengths little.
USUAL_TRUNCATED, TRUNCATED_TOKENS = 0.005, 0.05


def prompt_lengths(workload: Workload) -> Lengths:
    """Lengths of prompts."""
    return Lengths(workload.expected_prompt_tokens, workload.max_prompt_tokens)


def response_lengths(workload: Workload) -> Lengths:
    """Lengths of responses."""
    return response_lengths_of(
        workload.expected_response_tokens,
        workload.max_response_tokens,
        workload.expected_truncated,
    )


def response_lengths_of(mean: float, maximum: float, truncated: float | None) -> Lengths:
    """Lengths of responses.

    Args:
        mean: tokens.
        maximum: the limit, at which longer ones are cut off.
        truncated: the share that is cut off. None: unknown.
    """
    if truncated is None:
        truncated = min(USUAL_TRUNCATED, TRUNCATED_TOKENS * mean / maximum)
    return Lengths(mean, maximum, truncated)


def call_batch(problem: PlanningProblem, call: ModelCall) -> CallRows:
    """The expected rows of one run of a call: those that it reads or, if it generates, writes."""
    workload, graph = problem.workload, problem.graphs[GraphName.STEP]
    per_prompt = graph.rows[call.id].expected
    sampled = _samples(graph, call)
    return CallRows(
        rows=max(1, round(workload.prompts_per_step * per_prompt)),
        prompt=prompt_lengths(workload),
        response=response_lengths(workload),
        rows_per_prompt=max(sampled, default=max(1, round(per_prompt))),
    )


class SplitBatch(NamedTuple):
    """The rows of a call in two parts: those that ended early, and the others."""

    early: CallRows | None
    """None: there are none."""
    late: CallRows | None
    """None: there are none."""


def split_batch(batch: CallRows, generated: SplitGeneration) -> SplitBatch:
    """Split the rows of a call that reads responses.

    Args:
        batch: of the call.
        generated: the call that made the responses.
    """
    # Short responses end first, so the late part has more tokens than its share of rows.
    late = min(batch.rows, round(generated.rows_left))
    if not late:
        return SplitBatch(batch, None)
    response, left = batch.response, generated.left
    # Late rows have the tokens at the switch and their mean rest. The early rows' mean follows from
    # the tokens of the full batch.
    longer = Lengths(min(response.maximum, generated.tokens + left.mean), response.maximum)
    if late == batch.rows:
        return SplitBatch(None, batch)
    early = batch.rows - late
    mean = (batch.rows * response.mean - late * longer.mean) / early
    shorter = Lengths(max(1.0, mean), response.maximum)
    return SplitBatch(_part(batch, early, shorter), _part(batch, late, longer))


def _part(batch: CallRows, rows: int, response: Lengths) -> CallRows:
    """Some of the rows; each prompt keeps the mean number of them."""
    together = max(1, round(batch.rows_per_prompt * rows / batch.rows))
    return CallRows(rows, batch.prompt, response, together)


def pretraining_batch(workload: Workload) -> CallRows:
    """A step's rows of pretraining."""
    # Their lengths are unknown, so they count like prompts with responses.
    return CallRows(
        rows=max(1, workload.pretraining_rows),
        prompt=prompt_lengths(workload),
        response=response_lengths(workload),
    )


def generation_call(problem: PlanningProblem, call: ModelCall) -> GenerationCall:
    """The prompts of a call of the step that generates, and its responses to each."""
    assert isinstance(call.options, GenerateOptions)
    samples = call.options.samples
    rows = call_batch(problem, call).rows
    return GenerationCall(max(1, round(rows / samples)), samples)


def mini_batches(problem: PlanningProblem, call: ModelCall) -> int:
    """Parts of a call's batch, each for an update."""
    # A loss that makes one update even with two parts is never cut.
    if not isinstance(call.options, TrainOptions) or call.options.loss.updates(2) == 1:
        return 1
    return problem.workload.updates_per_epoch


def num_token_columns(call: ModelCall) -> int:
    """Number of columns with a value per token that a call reads."""
    # Columns of a user's own operation have no spec; each counts as one per token.
    kinds = [spec.kind if (spec := column_spec(name)) else None for name in call.reads]
    return sum(kind in (None, Kind.TOKENS, *PER_TOKEN) for kind in kinds)


def tokens_per_step(problem: PlanningProblem) -> float:
    """Prompt and response tokens of a step: of everything generated, or else of the policy's
    training."""
    graph, workload = problem.graphs[GraphName.STEP], problem.workload
    calls = graph.calls_of_kind(CallKind.GENERATE) or graph.trainings(problem.policy)[:1]
    tokens_per_row = workload.expected_prompt_tokens + workload.expected_response_tokens
    # Repeated calls count with the expected number of their rounds.
    rows = [call_batch(problem, call).rows * graph.expected_count(call.id) for call in calls]
    return sum(rows) * tokens_per_row


def _samples(graph: Graph, call: ModelCall) -> list[int]:
    """Responses per prompt of the generate calls whose responses a call reads."""
    options = [graph.call(source).options for source in graph.responses.get(call.id, ())]
    return [option.samples for option in options if isinstance(option, GenerateOptions)]
