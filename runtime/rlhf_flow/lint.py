"""What is odd about a job's step but no error: told before it starts, and it runs all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlhf_api.plan import CallKind, GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_flow.calls import ComputeOptions, TrainOptions
from rlhf_flow.checks import suggest
from rlhf_flow.fields import ROLLOUT_LOG_PROBS, log_probs_of
from rlhf_flow.flow import ENOUGH
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles
from rlhf_flow.losses import ClippedLoss
from rlhf_flow.registry import needs_old_log_probs


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
        *_unused_roles(graphs),
        *_unread_results(step),
        *_rounded_ratios(job, step, device),
    )


def _unused_models(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    roles = job_roles(graphs)
    used = {*roles, *(job.spec.origin_of(name) for name, role in roles.items() if role.head)}
    for name in sorted(set(job.spec.models) - used):
        yield (
            f"models.{name} is not used: got {name}, allowed the algorithm's roles "
            f"{', '.join(roles)}; {suggest(name, roles, 'remove it')}"
        )


def _unused_roles(graphs: Mapping[GraphName, Graph]) -> Iterator[str]:
    called = {call.role for graph in graphs.values() for call in graph.calls}
    for role in graphs[GraphName.STEP].roles:
        if role not in called:
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
        if wanted.isdisjoint(operation.writes):
            yield (
                f"{call.id} computes what nothing reads: got {type(operation).__name__} of "
                f"{', '.join(operation.writes)}{_overwriting(graph, number, operation.writes)}; "
                "remove it, or join its result with the batch"
            )
        wanted = wanted - set(operation.writes) | set(operation.reads)


def _overwriting(graph: Graph, number: int, fields: Sequence[str]) -> str:
    """Which later call overwrites one of these fields, if one does."""
    later = (call.id for call in graph.calls[number + 1 :] if set(fields) & set(call.writes))
    return next((f", which {call} overwrites" for call in later), "")


def _rounded_ratios(job: RLHFJob, graph: Graph, device: Device) -> Iterator[str]:
    for call in graph.of_kind(CallKind.TRAIN):
        assert call.role is not None and isinstance(call.options, TrainOptions)
        loss = call.options.loss
        if not isinstance(loss, ClippedLoss) or loss.old_log_probs != ROLLOUT_LOG_PROBS:
            continue
        if why := needs_old_log_probs(job, loss.epochs_per_batch, device, call.role):
            own = log_probs_of(call.role)
            yield (
                f"{call.id} compares log-probabilities of two engines, although {why}: got "
                f"old_log_probs={ROLLOUT_LOG_PROBS!r}, allowed the trainer's own; join "
                f"flow.{call.role}.log_probs(batch) and say old_log_probs={own!r}"
            )
