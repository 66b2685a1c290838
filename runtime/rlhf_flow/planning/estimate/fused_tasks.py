"""The tasks of a step some of whose calls begin before the last response has ended. Pure.

The order is the runtime's (rlhf_runtime.controller.dispatch): the call that finishes responses
comes right after that which generates them, and then, where it is planned, memory is given back, on
engines that finish nothing at once. Calls that begin early are sent in their place, over what has
ended; their second parts wait until a call is sent that does not begin early, or the step ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rlhf_api.calls import CallKind
from rlhf_api.plan import CallPlan
from rlhf_flow.planning.event_graph import PoolRanks, Task
from rlhf_flow.planning.stage_fusion.fused_plan import Fusion

EARLY, LATE = " (early)", " (late)"
"""After a call's site: its part over responses that ended early, and over the others; also of the
engines that give memory back at once, and of those that finish."""


def site_of(task: str) -> str:
    """The call of which a task is one, or a part."""
    return task.removesuffix(EARLY).removesuffix(LATE)


def fused_tasks(
    calls: Sequence[CallPlan],
    tasks: Sequence[Task],
    fusion: Fusion,
    late_seconds: Mapping[str, float],
) -> tuple[Task, ...]:
    """Tasks with those in two that are in two parts.

    Args:
        calls: of the step, in program order.
        tasks: one for each of them, as if nothing overlapped.
        fusion: what does.
        late_seconds: of second parts, of the seconds of those calls; those left out take no time.
    """
    return tuple(_Order(fusion, _finish_of(calls), late_seconds).sent(calls, tasks))


def _finish_of(calls: Sequence[CallPlan]) -> str:
    return next(call.call for call in calls if call.kind is CallKind.FINISH)


class _Order:
    """What is sent when."""

    def __init__(self, fusion: Fusion, finish: str, late_seconds: Mapping[str, float]) -> None:
        self._fusion, self._finish, self._late_seconds = fusion, finish, late_seconds
        self._late_parts: list[Task] = []
        self._whole = {fusion.generate: finish} | {site: site + LATE for site in fusion.calls}
        """When all of a call's rows are there."""

    def sent(self, calls: Sequence[CallPlan], tasks: Sequence[Task]) -> Iterator[Task]:
        for call, task in zip(calls, tasks, strict=True):
            if call.call in self._fusion.calls:
                yield self._begun(task)
                continue
            yield from self._late_parts
            self._late_parts.clear()
            if call.call == self._finish:
                yield replace(task, after=(self._fusion.generate,))
            elif self._gives_back(call):
                yield from self._given_back(call, task)
            else:
                yield self._after_whole(task)
        yield from self._late_parts

    def _begun(self, task: Task) -> Task:
        """The first part; the second is kept for later."""
        late = self._late_seconds.get(task.id, 0.0)
        early = replace(
            task,
            id=task.id + EARLY,
            seconds=max(0.0, task.seconds - late),
            after_previous=self._renamed(task.after_previous),
        )
        after = early.id, self._finish
        rest = replace(task, id=task.id + LATE, seconds=late, after=after, after_previous=())
        self._late_parts.append(rest)
        return early

    def _after_whole(self, task: Task) -> Task:
        return replace(
            task,
            after=self._renamed(task.after),
            after_previous=self._renamed(task.after_previous),
        )

    def _renamed(self, sites: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._whole.get(site, site) for site in sites)

    def _gives_back(self, call: CallPlan) -> bool:
        """Whether engines give their memory back of which not all finish."""
        is_theirs = call.kind is CallKind.RELEASE and call.mesh is not None
        return is_theirs and call.mesh != self._fusion.mesh

    def _given_back(self, call: CallPlan, task: Task) -> Iterator[Task]:
        assert call.mesh is not None
        pool, all_ranks, finishing = call.mesh.pool, call.mesh.ranks, self._fusion.mesh.ranks
        parts = range(all_ranks.start, finishing.start), range(finishing.stop, all_ranks.stop)
        freed = tuple(PoolRanks(pool, ranks) for ranks in parts if ranks)
        yield replace(task, id=task.id + EARLY, ranks=freed)
        yield replace(task, id=task.id + LATE, ranks=(PoolRanks(pool, finishing),))
