"""What is odd about a job's step but no error: told before it starts, and it runs all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import job_roles, policy_of
from rlhf_flow.jobs.registry import needs_old_log_probs, resolve_precision
from rlhf_flow.step.calls import ComputeOptions, ModelCall, TrainOptions
from rlhf_flow.step.checks import suggest
from rlhf_flow.step.columns import (
    ENOUGH,
    RESPONSE_MASK,
    RESPONSE_TOKENS,
    ROLLOUT_LOG_PROBS,
    log_probs_of,
    reads_of,
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

_MEASURING = (PassAtK, WeightedSum)
"""Operations that report metrics, whatever becomes of what they write."""

_COMPARING = (GroupAdvantages, MixedGroups, BestAgainstWorst)
"""Operations to which a single response to a prompt says nothing."""


def lint_job(job: RLHFJob, graphs: Mapping[GraphName, Graph], device: Device) -> tuple[str, ...]:
    """What the author of a manifest or of a step may not have meant, one sentence each.

    Args:
        job: the manifest.
        graphs: of the job.
        device: what it computes on.
    """
    step = graphs[GraphName.STEP]
    return (
        *_unused_models(job, graphs),
        *_unused_roles(job, graphs),
        *_unread_results(step),
        *_rounded_ratios(job, step, device),
        *_rounded_penalties(job, step, device),
        *_penalties_against_oneself(step),
        *_late_log_probs(step),
        *_lonely_responses(step),
        *_undivided_batches(job, step),
        *_uneven_batches(job, step),
        *_missing_evaluation(job, graphs),
        *_small_micro_batches(job, graphs),
        *_partial_masks(step),
    )


def _unused_models(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    roles = job_roles(graphs)
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
    of_rewards = {model for names in models.values() for model in names}
    for role in graphs[GraphName.STEP].roles:
        # A score made only of reward models is their calls; the role itself has none.
        names = (role, *models.get(role, ()))
        if role not in of_rewards and not any(call.uses(n) for call in called for n in names):
            yield (
                f"a role that no call uses: got {role} in roles(), allowed roles that the step "
                "calls; remove it, or call it"
            )


def _unread_results(graph: Graph) -> Iterator[str]:
    read = {(edge.source, field) for edge in graph.data_edges for field in edge.fields}
    for number, call in enumerate(graph.calls):
        if call.kind is CallKind.COMPUTE:
            yield from _unread_operations(graph, number, read)
        is_read = any((call.id, field) in read for field in (*call.writes, *call.carries))
        if call.kind in (CallKind.GENERATE, CallKind.INFER) and not is_read:
            yield (
                f"{call.id} makes what nothing reads: got {', '.join(call.writes)}"
                f"{_overwriting(graph, number, call.writes)}; remove the call, or join its result "
                "with the batch"
            )


def _unread_operations(graph: Graph, number: int, read: set[tuple[str, str]]) -> Iterator[str]:
    """Operations of a call of which neither a later one nor another call reads anything."""
    call = graph.calls[number]
    assert isinstance(call.options, ComputeOptions)
    wanted = {field for field in call.writes if (call.id, field) in read} | {ENOUGH}
    for operation in reversed(call.options.operations):
        if wanted.isdisjoint(operation.writes) and not isinstance(operation, _MEASURING):
            yield (
                f"{call.id} computes what nothing reads: got {type(operation).__name__} of "
                f"{', '.join(operation.writes)}{_overwriting(graph, number, operation.writes)}; "
                "remove it, or join its result with the batch"
            )
        wanted = wanted - set(operation.writes) | reads_of(operation, {RESPONSE_MASK})


def _overwriting(graph: Graph, number: int, fields: Sequence[str]) -> str:
    """Which later call overwrites one of these fields, if one does."""
    later = (call.id for call in graph.calls[number + 1 :] if set(fields) & set(call.writes))
    return next((f", which {call} overwrites" for call in later), "")


def _rounded_ratios(job: RLHFJob, graph: Graph, device: Device) -> Iterator[str]:
    for call, loss in _policy_losses(graph):
        assert call.role is not None
        if loss.old_log_probs != ROLLOUT_LOG_PROBS:
            continue
        if why := needs_old_log_probs(job, loss.epochs_per_batch, device, call.role):
            own = log_probs_of(call.role)
            yield (
                f"{call.id} compares log-probabilities of two engines, although {why}: got "
                f"old_log_probs={ROLLOUT_LOG_PROBS!r}, allowed the trainer's own; join "
                f"flow.{call.role}.log_probs(batch) and say old_log_probs={own!r}"
            )


def _rounded_penalties(job: RLHFJob, graph: Graph, device: Device) -> Iterator[str]:
    policy = policy_of(graph)
    precision = resolve_precision(job.spec.model_for(policy).training.precision, device)
    if precision is not Precision.BFLOAT16:
        return
    own = log_probs_of(policy)
    for call in graph.of_kind(CallKind.COMPUTE):
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


def _penalties_against_oneself(graph: Graph) -> Iterator[str]:
    for call, loss in _policy_losses(graph):
        field = loss.reference_log_probs
        if loss.kl_coefficient == 0 or field is None:
            continue
        for maker in _makers_of(graph, call, field):
            if maker.role == call.role or maker.role in graph.roles_of(CallKind.TRAIN):
                yield (
                    f"{call.id} penalizes KL against a policy that is trained itself: got "
                    f"reference_log_probs={field!r} of {maker.id}, allowed the log-probabilities "
                    "of a frozen role; add one to roles(), such as reference: LanguageModel, and "
                    "join flow.reference.log_probs(batch)"
                )
            for copy in _copies_of_every_step(graph, call, maker):
                yield (
                    f"{call.id} penalizes KL against what it begins with: got "
                    f"reference_log_probs={field!r} of {maker.id}, which {copy.id} makes equal to "
                    f"{call.role} in every step, allowed a role that stays behind; copy every n "
                    "steps, by flow.every"
                )


def _copies_of_every_step(graph: Graph, call: ModelCall, maker: ModelCall) -> list[ModelCall]:
    """Those by which the maker's role has, whenever a step begins, the weights of a call's."""
    return [
        copy
        for copy in graph.of_kind(CallKind.COPY)
        if copy.role == maker.role and copy.copied_role == call.role
        if graph.expected_count(copy.id) == 1
    ]


def _late_log_probs(graph: Graph) -> Iterator[str]:
    place = {call.id: number for number, call in enumerate(graph.calls)}
    for call, loss in _policy_losses(graph):
        sampled = [place[each.id] for each in _makers_of(graph, call, RESPONSE_TOKENS)]
        for maker in _makers_of(graph, call, loss.old_log_probs):
            between = range(max(sampled, default=0), place[maker.id])
            changed = [each for each in graph.changes(str(call.role)) if place[each.id] in between]
            if maker.kind is CallKind.INFER and changed:
                yield (
                    f"{call.id} takes log-probabilities of weights that did not sample: got "
                    f"old_log_probs={loss.old_log_probs!r} of {maker.id}, after "
                    f"{changed[0].id} has changed {call.role}, allowed those from before; move "
                    f"{maker.id} in front of it"
                )


def _partial_masks(graph: Graph) -> Iterator[str]:
    """Calls that count all tokens of responses of which others count some."""
    readers: dict[str, str] = {}
    for reader in (each for each in graph.calls if RESPONSE_MASK in each.reads):
        for maker in _makers_of(graph, reader, RESPONSE_MASK):
            for responses in _sampled_by(graph, maker.id):
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
    """Whether a call would read a response mask."""
    readers: Sequence[Loss | Operation] = ()
    if isinstance(call.options, TrainOptions):
        readers = (call.options.loss,)
    if isinstance(call.options, ComputeOptions):
        readers = call.options.operations
    return any(RESPONSE_MASK in reads_of(each, {RESPONSE_MASK}) for each in readers)


def _sampled_by(graph: Graph, call_id: str) -> set[str]:
    """The generate calls that what a call reads comes from, and the data where no call sampled."""
    later = {call.id for call in graph.calls if call.kind is not CallKind.GENERATE}
    seen: set[str] = set()
    waiting = {call_id}
    while waiting:
        target = waiting.pop()
        sources = {edge.source for edge in graph.data_edges if edge.target == target} - seen
        seen |= sources
        waiting |= sources & later
    return seen - later


def _lonely_responses(graph: Graph) -> Iterator[str]:
    for call in graph.of_kind(CallKind.COMPUTE):
        assert isinstance(call.options, ComputeOptions)
        for operation in call.options.operations:
            if isinstance(operation, _COMPARING) and graph.rows[call.id].most == 1:
                yield (
                    f"{call.id} compares the responses to a prompt, and there is one: got "
                    f"{type(operation).__name__} of one row for each, allowed two or more; raise "
                    "rollout.samplesPerPrompt, or generate with samples="
                )


def _missing_evaluation(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    """How often to evaluate, without anything held out. The default says nothing."""
    asked = job.spec.schedule.evaluate_every_steps
    default = type(job.spec.schedule).model_fields["evaluate_every_steps"].default
    if asked not in (0, default) and GraphName.EVALUATION not in graphs:
        yield (
            f"schedule.evaluateEverySteps has no effect: got {asked} and nothing to evaluate on, "
            "allowed with data.evaluation and an algorithm that generates; add held-out prompts, "
            "or remove it"
        )


def _small_micro_batches(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    """Micro-batches that do not hold the longest sequence, which runs alone."""
    rollout = job.spec.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    for role, model in job.spec.models.items():
        asked = model.training.micro_batch_tokens
        if role in job_roles(graphs) and asked is not None and asked < longest:
            yield (
                f"models.{role}.training.microBatchTokens is less than the longest sequence: got "
                f"{asked} for {longest} tokens of prompt and response, allowed as it is: a longer "
                "sequence runs alone, and memory is planned for it; to save more lower "
                "rollout.maxPromptTokens or maxResponseTokens"
            )


def _undivided_batches(job: RLHFJob, graph: Graph) -> Iterator[str]:
    """Losses that make one update of a step's batch, where the manifest asks for several."""
    asked, losses = job.spec.schedule.mini_batch_prompts, _losses(graph)
    if job.spec.schedule.updates_per_epoch > 1 and not _makes_several_updates(losses):
        yield (
            f"schedule.miniBatchPrompts has no effect: got {asked} beside "
            f"{', '.join(dict.fromkeys(type(each).__name__ for each in losses))}, which makes one "
            "update of a step's whole batch, allowed with other losses; lower promptsPerStep for "
            "smaller updates, or remove it"
        )


def _uneven_batches(job: RLHFJob, graph: Graph) -> Iterator[str]:
    """Mini-batches that are smaller than the manifest says, as it does not divide a step."""
    schedule = job.spec.schedule
    prompts, asked = schedule.prompts_per_step, schedule.mini_batch_prompts
    if asked is None or prompts % asked == 0 or not _makes_several_updates(_losses(graph)):
        return
    count = schedule.updates_per_epoch
    least, larger = divmod(prompts, count)
    sizes = f"{least} prompts" if not larger else f"{least + 1} or {least} prompts"
    divisors = [size for size in range(1, prompts + 1) if prompts % size == 0]
    below = max(size for size in divisors if size < asked)
    above = min(size for size in divisors if size > asked)
    advice = f"{below} or {above} for equal ones" if larger else f"{least}, which it comes to"
    yield (
        f"schedule.miniBatchPrompts does not divide promptsPerStep: got {asked} of {prompts}, "
        f"which makes {count} updates of {sizes}, none left out, allowed as it is; write {advice}"
    )


def _losses(graph: Graph) -> list[Loss]:
    trainings = [call.options for call in graph.of_kind(CallKind.TRAIN)]
    return [options.loss for options in trainings if isinstance(options, TrainOptions)]


def _makes_several_updates(losses: Sequence[Loss]) -> bool:
    """Whether some loss makes an update of each mini-batch."""
    return any(each.updates(2) > 1 for each in losses)


def _policy_losses(graph: Graph) -> Iterator[tuple[ModelCall, ClippedLoss]]:
    for call in graph.of_kind(CallKind.TRAIN):
        if isinstance(call.options, TrainOptions) and isinstance(call.options.loss, ClippedLoss):
            yield call, call.options.loss


def _makers_of(graph: Graph, call: ModelCall, field: str) -> list[ModelCall]:
    """The calls that wrote a field that a call reads, where it was not renamed."""
    sources = {e.source for e in graph.data_edges if e.target == call.id and field in e.fields}
    return [each for each in graph.calls if each.id in sources]
