"""Warnings about a job's step that do not keep it from running."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.checkpoint import FinalModel
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import job_roles, policy_role
from rlhf_flow.jobs.registry import needs_old_log_probs, resolve_precision
from rlhf_flow.step.calls import ComputeOptions, ModelCall, TrainOptions
from rlhf_flow.step.checks import suggest
from rlhf_flow.step.column_settings import columns_read_by
from rlhf_flow.step.columns import (
    ENOUGH,
    RESPONSE_MASK,
    RESPONSE_TOKENS,
    ROLLOUT_LOG_PROBS,
    log_probs_column,
)
from rlhf_flow.step.losses import ClippedLoss, Loss
from rlhf_flow.step.operations import (
    BestAgainstWorst,
    GroupAdvantages,
    MixedGroups,
    Operation,
    PassAtK,
    PenalizedScores,
    TokenRewards,
    WeightedSum,
)
from rlhf_flow.step.reward_terms import reward_terms
from rlhf_flow.trace.graph import Graph

# Operations with metrics, which are of use even if nothing reads their columns.
_MEASURING = (PassAtK, WeightedSum)

# Operations that need several responses to a prompt.
_COMPARING = (GroupAdvantages, MixedGroups, BestAgainstWorst)


def lint_job(job: RLHFJob, graphs: Mapping[GraphName, Graph], device: Device) -> tuple[str, ...]:
    """Find probable mistakes of a manifest or a step.

    Args:
        job: the manifest.
        graphs: of the job.
        device: it decides on the precision `Auto`.

    Returns:
        A sentence per warning.
    """
    step = graphs[GraphName.STEP]
    return (
        *_unused_models(job, graphs),
        *_unused_roles(job, graphs),
        *_unread_results(step),
        *_rounded_ratios(job, step, device),
        *_rounded_penalties(job, step, device),
        *_unfrozen_references(step),
        *_late_log_probs(step),
        *_single_responses(step),
        *_undivided_batches(job, step),
        *_uneven_batches(job, step),
        *_missing_evaluation(job, graphs),
        *_late_early_stop(job),
        *_best_is_always_last(job),
        *_small_micro_batches(job, graphs),
        *_partial_masks(step),
    )


def _unused_models(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    roles = job_roles(graphs)
    # A role without a model of its own starts from another role's: that one is used, too.
    used = {*roles, *(job.spec.origin_role(name) for name, role in roles.items() if role.head)}
    for name in sorted(set(job.spec.models) - used):
        yield (
            f"models.{name} is not used: got {name}, allowed the algorithm's roles "
            f"{', '.join(roles)}; {suggest(name, roles, 'remove it')}"
        )


def _unused_roles(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    called = [call for graph in graphs.values() for call in graph.calls]
    rewards = reward_terms(job.spec.rewards)
    models = {name: [term.role for term in terms.models] for name, terms in rewards.items()}
    reward_models = {model for names in models.values() for model in names}
    for role in graphs[GraphName.STEP].roles:
        # A score made only of reward models is their calls; the role itself has none.
        names = (role, *models.get(role, ()))
        if role not in reward_models and not any(call.uses(n) for call in called for n in names):
            yield (
                f"a role that no call uses: got {role} in roles(), allowed roles that the step "
                "calls; remove it, or call it"
            )


def _unread_results(graph: Graph) -> Iterator[str]:
    read = {(edge.source, column) for edge in graph.data_edges for column in edge.columns}
    for number, call in enumerate(graph.calls):
        # Each operation for itself: others of the same call may be read.
        if call.kind is CallKind.COMPUTE:
            yield from _unread_operations(graph, number, read)
        is_read = any((call.id, column) in read for column in (*call.writes, *call.carries))
        if call.kind in (CallKind.GENERATE, CallKind.INFER) and not is_read:
            yield (
                f"{call.id} makes what nothing reads: got {', '.join(call.writes)}"
                f"{_overwriting(graph, number, call.writes)}; remove the call, or join its result "
                "with the batch"
            )


def _unread_operations(graph: Graph, number: int, read: set[tuple[str, str]]) -> Iterator[str]:
    """Warn of operations whose columns neither a later operation nor another call reads."""
    call = graph.calls[number]
    assert isinstance(call.options, ComputeOptions)
    # A score's own calls, such as reward.valid, come from the manifest, not from the step.
    if "." in call.id.rpartition("/")[2]:
        return
    # Backwards: what is read later decides whether an operation is needed.
    needed = {column for column in call.writes if (call.id, column) in read} | {ENOUGH}
    for operation in reversed(call.options.operations):
        if needed.isdisjoint(operation.writes) and not isinstance(operation, _MEASURING):
            yield (
                f"{call.id} computes what nothing reads: got {type(operation).__name__} of "
                f"{', '.join(operation.writes)}{_overwriting(graph, number, operation.writes)}; "
                "remove it, or join its result with the batch"
            )
        # The mask counts as read: without it the writer of a mask would be reported.
        needed = needed - set(operation.writes) | columns_read_by(operation, {RESPONSE_MASK})


def _overwriting(graph: Graph, number: int, columns: Sequence[str]) -> str:
    """Name a later call that overwrites one of these columns, for a message."""
    # The usual cause: two calls write one column, and the second one wins the join.
    later = (call.id for call in graph.calls[number + 1 :] if set(columns) & set(call.writes))
    return next((f", which {call} overwrites" for call in later), "")


def _rounded_ratios(job: RLHFJob, graph: Graph, device: Device) -> Iterator[str]:
    for call, loss in _policy_losses(graph):
        assert call.role is not None
        # Rounding makes the ratio differ from 1 before any update.
        if loss.old_log_probs != ROLLOUT_LOG_PROBS:
            continue
        if reason := needs_old_log_probs(job, loss.epochs_per_batch, device, call.role):
            own = log_probs_column(call.role)
            yield (
                f"{call.id} compares log-probabilities of two engines, although {reason}: got "
                f"old_log_probs={ROLLOUT_LOG_PROBS!r}, allowed the trainer's own; join "
                f"flow.{call.role}.log_probs(batch) and say old_log_probs={own!r}"
            )


def _rounded_penalties(job: RLHFJob, graph: Graph, device: Device) -> Iterator[str]:
    policy = policy_role(graph)
    precision = resolve_precision(job.spec.model_for(policy).training.precision, device)
    # In float32 the engines agree within the tolerance that every step reports.
    if precision is not Precision.BFLOAT16:
        return
    own = log_probs_column(policy)
    for call in graph.calls_of_kind(CallKind.COMPUTE):
        assert isinstance(call.options, ComputeOptions)
        for operation in call.options.operations:
            is_penalty = isinstance(operation, TokenRewards | PenalizedScores)
            if is_penalty and ROLLOUT_LOG_PROBS in operation.reads:
                yield (
                    f"{call.id} penalizes KL by log-probabilities of two engines, although the "
                    f"trainer computes in bfloat16: got policy_log_probs={ROLLOUT_LOG_PROBS!r} of "
                    f"{type(operation).__name__}, allowed the trainer's own; join "
                    f"flow.{policy}.log_probs(batch) and say policy_log_probs={own!r}"
                )


def _unfrozen_references(graph: Graph) -> Iterator[str]:
    for call, loss in _policy_losses(graph):
        column = loss.reference_log_probs
        if loss.kl_coefficient == 0 or column is None:
            continue
        for writer in _writers(graph, call, column):
            # Against itself, or a policy that is trained as well, the penalty has no fixed target.
            if writer.role == call.role or writer.role in graph.roles_with(CallKind.TRAIN):
                yield (
                    f"{call.id} penalizes KL against a policy that is trained itself: got "
                    f"reference_log_probs={column!r} of {writer.id}, allowed the log-probabilities "
                    "of a frozen role; add one to roles(), such as reference: LanguageModel, and "
                    "join flow.reference.log_probs(batch)"
                )
            for copy in _copies_in_every_step(graph, call, writer):
                yield (
                    f"{call.id} penalizes KL against its own initial weights: got "
                    f"reference_log_probs={column!r} of {writer.id}, which {copy.id} makes equal "
                    f"to {call.role} in every step, allowed a role that stays behind; copy every n "
                    "steps, by flow.every"
                )


def _copies_in_every_step(graph: Graph, call: ModelCall, writer: ModelCall) -> list[ModelCall]:
    """The copies that give the writer's role the weights of the call's role in every step."""
    return [
        copy
        for copy in graph.calls_of_kind(CallKind.COPY)
        if copy.role == writer.role and copy.copied_role == call.role
        if graph.expected_count(copy.id) == 1
    ]


def _late_log_probs(graph: Graph) -> Iterator[str]:
    position = {call.id: number for number, call in enumerate(graph.calls)}
    for call, loss in _policy_losses(graph):
        sampled = [position[writer.id] for writer in _writers(graph, call, RESPONSE_TOKENS)]
        changes = graph.changes(str(call.role))
        for writer in _writers(graph, call, loss.old_log_probs):
            # Changes after the sampling and before the log-probabilities.
            between = range(max(sampled, default=0), position[writer.id])
            changed = [change for change in changes if position[change.id] in between]
            if writer.kind is CallKind.INFER and changed:
                yield (
                    f"{call.id} takes log-probabilities of weights that did not sample: got "
                    f"old_log_probs={loss.old_log_probs!r} of {writer.id}, after "
                    f"{changed[0].id} has changed {call.role}, allowed those from before; move "
                    f"{writer.id} in front of it"
                )


def _partial_masks(graph: Graph) -> Iterator[str]:
    """Warn of calls without a mask on responses that other calls mask."""
    # Per generate call: a call that reads a mask of its responses.
    readers: dict[str, str] = {}
    for reader in (call for call in graph.calls if RESPONSE_MASK in call.reads):
        for writer in _writers(graph, reader, RESPONSE_MASK):
            for responses in _sampled_by(graph, writer.id):
                readers.setdefault(responses, reader.id)
    for call in filter(_counts_tokens, graph.calls if readers else ()):
        shared = sorted(readers.keys() & _sampled_by(graph, call.id))
        if shared and RESPONSE_MASK not in (*call.reads, *call.writes):
            yield (
                f"{call.id} counts all tokens of responses of which {readers[shared[0]]} counts "
                f"some: got no {RESPONSE_MASK} in its batch, allowed the same mask for both; join "
                f"it in front of {call.id}"
            )


def _counts_tokens(call: ModelCall) -> bool:
    """True if a call would read a response mask."""
    readers: Sequence[Loss | Operation] = ()
    if isinstance(call.options, TrainOptions):
        readers = (call.options.loss,)
    if isinstance(call.options, ComputeOptions):
        readers = call.options.operations
    return any(RESPONSE_MASK in columns_read_by(reader, {RESPONSE_MASK}) for reader in readers)


def _sampled_by(graph: Graph, call_id: str) -> set[str]:
    """The generate calls, or else the data, from which the inputs of a call come."""
    # Backwards along the edges; a generate call starts new rows, so the search ends there.
    later = {call.id for call in graph.calls if call.kind is not CallKind.GENERATE}
    seen: set[str] = set()
    waiting = {call_id}
    while waiting:
        target = waiting.pop()
        sources = {edge.source for edge in graph.data_edges if edge.target == target} - seen
        seen |= sources
        waiting |= sources & later
    return seen - later


def _single_responses(graph: Graph) -> Iterator[str]:
    for call in graph.calls_of_kind(CallKind.COMPUTE):
        assert isinstance(call.options, ComputeOptions)
        for operation in call.options.operations:
            # A single response has no others as its baseline, and no partner in a pair.
            if isinstance(operation, _COMPARING) and graph.rows[call.id].maximum == 1:
                yield (
                    f"{call.id} compares the responses to a prompt, and there is one: got "
                    f"{type(operation).__name__} of one row for each, allowed two or more; raise "
                    "rollout.samplesPerPrompt, or generate with samples="
                )


def _missing_evaluation(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    """Warn of evaluateEverySteps without evaluation data."""
    # The default is no request of the user, and 0 turns evaluation off.
    requested = job.spec.schedule.evaluate_every_steps
    default = type(job.spec.schedule).model_fields["evaluate_every_steps"].default
    if requested not in (0, default) and GraphName.EVALUATION not in graphs:
        yield (
            f"schedule.evaluateEverySteps: {requested} has no effect without data.evaluation and "
            "an algorithm that generates; add evaluation prompts, or remove it"
        )


def _late_early_stop(job: RLHFJob) -> Iterator[str]:
    """Warn of an early stop that cannot come before the last step."""
    schedule = job.spec.schedule
    if schedule.early_stop is None:
        return
    every, patience = schedule.evaluate_every_steps, schedule.early_stop.patience
    # The evaluation before the first step is the one to improve on.
    evaluations = (schedule.steps - 1) // every
    if evaluations < patience:
        yield (
            f"schedule.earlyStop.patience: {patience} has no effect, since only {evaluations} "
            f"evaluations lie between the first and the last of {schedule.steps} steps; lower it "
            f"or evaluateEverySteps: {every}"
        )


def _best_is_always_last(job: RLHFJob) -> Iterator[str]:
    """Warn of a best checkpoint that is always the last one."""
    checkpoint, schedule = job.spec.checkpoint, job.spec.schedule
    # The checkpoint after a warm start is evaluated, too.
    if checkpoint.final_model is not FinalModel.BEST or schedule.warm_start is not None:
        return
    intervals = (checkpoint.every_steps, schedule.evaluate_every_steps)
    if 0 in intervals or lcm(*intervals) >= schedule.steps:
        yield (
            f"checkpoint.finalModel: {FinalModel.BEST} has no effect, since no checkpoint before "
            f"the last of {schedule.steps} steps is of an evaluated step: got checkpoint.everySteps"
            f": {intervals[0]} and schedule.evaluateEverySteps: {intervals[1]}; make one a divisor "
            "of the other, and both smaller than the number of steps"
        )


def _small_micro_batches(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    """Warn of micro-batches that cannot contain the longest sequence, which then runs alone."""
    rollout = job.spec.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    for role, model in job.spec.models.items():
        requested = model.training.micro_batch_tokens
        if role in job_roles(graphs) and requested is not None and requested < longest:
            yield (
                f"models.{role}.training.microBatchTokens: {requested} is less than the {longest} "
                "tokens of the longest prompt and response; a longer sequence runs alone, and "
                "memory is planned for it; to save more lower rollout.maxPromptTokens or "
                "maxResponseTokens"
            )


def _undivided_batches(job: RLHFJob, graph: Graph) -> Iterator[str]:
    """Warn of miniBatchPrompts if all losses make one update of a step's batch."""
    # Such as cross entropy, which is never cut into mini-batches.
    requested, losses = job.spec.schedule.mini_batch_prompts, _losses(graph)
    if job.spec.schedule.updates_per_epoch > 1 and not _makes_several_updates(losses):
        yield (
            f"schedule.miniBatchPrompts: {requested} has no effect with "
            f"{', '.join(dict.fromkeys(type(loss).__name__ for loss in losses))}, which makes one "
            "update of a step's complete batch; lower promptsPerStep for smaller updates, or "
            "remove it"
        )


def _uneven_batches(job: RLHFJob, graph: Graph) -> Iterator[str]:
    """Warn of a miniBatchPrompts that does not divide promptsPerStep."""
    schedule = job.spec.schedule
    prompts, requested = schedule.prompts_per_step, schedule.mini_batch_prompts
    if requested is None or prompts % requested == 0 or not _makes_several_updates(_losses(graph)):
        return
    count = schedule.updates_per_epoch
    # Sizes differ by at most one prompt: `larger` mini-batches have one more.
    smallest, larger = divmod(prompts, count)
    sizes = f"{smallest} prompts" if not larger else f"{smallest + 1} or {smallest} prompts"
    divisors = [size for size in range(1, prompts + 1) if prompts % size == 0]
    below = max(size for size in divisors if size < requested)
    above = min(size for size in divisors if size > requested)
    advice = f"{below} or {above} for equal ones" if larger else f"{smallest}, the effective size"
    yield (
        f"schedule.miniBatchPrompts: {requested} does not divide promptsPerStep: {prompts}; a step "
        f"makes {count} updates of {sizes}, and no prompt is left out; write {advice}"
    )


def _losses(graph: Graph) -> list[Loss]:
    trainings = [call.options for call in graph.calls_of_kind(CallKind.TRAIN)]
    return [options.loss for options in trainings if isinstance(options, TrainOptions)]


def _makes_several_updates(losses: Sequence[Loss]) -> bool:
    """True if a loss makes an update per mini-batch."""
    # Two mini-batches stand for any number above one.
    return any(loss.updates(2) > 1 for loss in losses)


def _policy_losses(graph: Graph) -> Iterator[tuple[ModelCall, ClippedLoss]]:
    for call in graph.calls_of_kind(CallKind.TRAIN):
        if isinstance(call.options, TrainOptions) and isinstance(call.options.loss, ClippedLoss):
            yield call, call.options.loss


def _writers(graph: Graph, call: ModelCall, column: str) -> list[ModelCall]:
    """The calls that wrote a column that a call reads under its original name."""
    sources = {e.source for e in graph.data_edges if e.target == call.id and column in e.columns}
    return [writer for writer in graph.calls if writer.id in sources]
